"""Checkpoints: all that a run needs to go on as if it had not been interrupted, written by Orbax."""

import dataclasses
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from jitbatch import StepCapacity
from jitbatch.cli._errors import CommandError
from jitbatch.cli._trainer import Progress, Trainer

KEPT = 2
"""The newest, and one to fall back on."""

SECONDS = 600.0
"""The time after which a checkpoint is old: that much of a long epoch is lost at most."""


class Checkpoints:
    """The checkpoints of one run. Each has the number after the largest one, so saving never replaces another."""

    def __init__(self, directory: Path):
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax tells every detail, and errors that it raises, too
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._directory = directory.absolute()
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        self._damaged: list[int] = []
        self._saved_at = time.monotonic()

    @property
    def are_old(self) -> bool:
        return time.monotonic() - self._saved_at > SECONDS

    def save(self, trainer: Trainer) -> None:
        """Save a trainer. Earlier checkpoints are removed once this one is complete.

        Raises:
            OSError: it could not be written, for example on a full disk. Earlier checkpoints are as they were.
        """
        arrays = _arrays(trainer)
        about = {
            "progress": dataclasses.asdict(trainer.progress),
            "rooms": {name: capacity.to_json() for name, capacity in trainer.capacities.items()},
            "data": _data_digest(trainer),
        }
        about["digest"] = _digest(arrays, about)
        items = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        checkpoint_id = max(self._manager.all_steps(), default=-1) + 1
        for damaged in self._damaged:  # or they would be kept instead of a good one
            self._manager.delete(damaged)
        self._damaged = []
        with _system_errors(self._directory):
            self._manager.save(checkpoint_id, args=items, force=True)
        self._saved_at = time.monotonic()

    def restore(self, trainer: Trainer, warn: Callable[[str], None]) -> None:
        """Give a trainer the state of the newest checkpoint that can be read."""
        checkpoint_ids = sorted(self._manager.all_steps(), reverse=True)
        for checkpoint_id in checkpoint_ids:
            try:
                self._restore(trainer, checkpoint_id)
                return
            except CommandError:
                raise
            except Exception as error:  # Orbax raises whatever its parts do where a file is damaged
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                warn(f"checkpoint {checkpoint_id} cannot be read, trying the one before it: {reason[:200]}")
                self._damaged.append(checkpoint_id)
        found = (
            f"none of its {len(checkpoint_ids)} checkpoints can be read" if checkpoint_ids else "it has no checkpoint"
        )
        raise CommandError(f"the run cannot be resumed: {found} ({self._directory}). Begin a new run")

    def _restore(self, trainer: Trainer, checkpoint_id: int) -> None:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _arrays(trainer))
        restored = self._manager.restore(
            checkpoint_id, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(like), about=ocp.args.JsonRestore())
        )
        arrays, about = restored["arrays"], restored["about"]
        if isinstance(about.get("rooms"), str):
            raise CommandError(
                "the run cannot be resumed: an earlier release of jitbatch saved its checkpoints, with pickles in "
                "them, which are not loaded any more. Begin a new run"
            )
        digest = about.pop("digest")
        if digest != _digest(arrays, about):
            raise ValueError("its arrays, or what is said of them, are not those that were saved")
        if about["data"] != _data_digest(trainer):
            raise CommandError(
                "the run cannot be resumed: its training data, or how words in it are numbered, is not what it was "
                "when the run began. Begin a new run"
            )
        capacities = {name: StepCapacity.from_json(text) for name, text in about["rooms"].items()}
        progress = Progress(**about["progress"])
        # Nothing can fail from here on, so a trainer is never restored by half.
        model, optimizer, best = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _as_leaf(arrays[jax.tree_util.keystr(path)], leaf), _states(trainer)
        )
        nnx.update(trainer.model, model)
        nnx.update(trainer.optimizer, optimizer)
        trainer.best, trainer.capacities, trainer.progress = best, capacities, progress

    def close(self) -> None:
        self._manager.close()


@contextmanager
def _system_errors(directory: Path) -> Iterator[None]:
    """Errors of the operating system as OSError, which TensorStore, in Orbax, raises as ValueError with their code."""
    try:
        yield
    except ValueError as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(directory)) from error


def _states(trainer: Trainer) -> Any:
    return nnx.state(trainer.model), nnx.state(trainer.optimizer), trainer.best


def _arrays(trainer: Trainer) -> dict[str, Any]:
    """All arrays of a trainer, by their paths; random keys as the words they consist of. On a mesh, all processes have
    all of them."""
    arrays = {
        jax.tree_util.keystr(path): jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(_states(trainer))
    }
    if trainer.mesh is None:
        return arrays
    everywhere = jax.NamedSharding(trainer.mesh, jax.P())
    return {
        name: leaf
        if len(leaf.sharding.device_set) > 1
        else jax.make_array_from_process_local_data(everywhere, np.asarray(leaf), leaf.shape)
        for name, leaf in arrays.items()
    }


def _as_leaf(array: Any, leaf: Any) -> Any:
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _digest(arrays: dict[str, Any], about: dict[str, Any]) -> str:
    """A checksum over everything that a checkpoint holds."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _data_digest(trainer: Trainer) -> str:
    return hashlib.sha256(repr(trainer.task.train).encode()).hexdigest()
