"""Checkpoints: all that a run needs to go on as if it had not been interrupted, written by Orbax."""

import base64
import dataclasses
import hashlib
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from jitbatch import Plan
from jitbatch.cli._errors import CommandError
from jitbatch.cli._trainer import Progress, Trainer

KEPT = 2
"""The newest, and one to fall back on."""


class Checkpoints:
    """The checkpoints of one run, by number of steps."""

    def __init__(self, directory: Path):
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells every detail of what it writes
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._directory = directory.absolute()
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(self, trainer: Trainer) -> None:
        """Save a trainer. Where it was saved after the same step, before its epoch was evaluated, that is replaced."""
        step = trainer.progress.step
        arrays = _arrays(trainer)
        about = {
            "progress": dataclasses.asdict(trainer.progress),
            "rooms": base64.b64encode(pickle.dumps(_capacities(trainer))).decode("ascii"),
            "digest": _digest(arrays),
            "data": _data_digest(trainer),
        }
        items = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
        if step in self._manager.all_steps():
            self._manager.delete(step)
        self._manager.save(step, args=items, force=True)

    def restore(self, trainer: Trainer, warn: Callable[[str], None]) -> None:
        """Give a trainer the state of the newest checkpoint that can be read."""
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                self._restore(trainer, step)
                return
            except CommandError:
                raise
            except Exception as error:  # Orbax raises whatever its parts do where a file is damaged
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                warn(f"the checkpoint of step {step} cannot be read, trying the one before it: {reason[:200]}")
        found = f"none of its {len(steps)} checkpoints can be read" if steps else "it has no checkpoint"
        raise CommandError(f"the run cannot be resumed: {found} ({self._directory}). Begin a new run")

    def _restore(self, trainer: Trainer, step: int) -> None:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _arrays(trainer))
        restored = self._manager.restore(
            step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(like), about=ocp.args.JsonRestore())
        )
        arrays, about = restored["arrays"], restored["about"]
        if _digest(arrays) != about["digest"]:
            raise ValueError("its arrays are not those that were saved")
        if about["data"] != _data_digest(trainer):
            raise CommandError(
                "the run cannot be resumed: its training data, or how words in it are numbered, is not what it was "
                "when the run began. Begin a new run"
            )
        rooms = pickle.loads(base64.b64decode(about["rooms"]))
        progress = Progress(**about["progress"])
        # Nothing can fail from here on, so a trainer is never restored by half.
        model, optimizer, best = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _as_leaf(arrays[jax.tree_util.keystr(path)], leaf), _states(trainer)
        )
        nnx.update(trainer.model, model)
        nnx.update(trainer.optimizer, optimizer)
        trainer.best, trainer.rooms, trainer.progress = best, rooms, progress

    def close(self) -> None:
        self._manager.close()


def _states(trainer: Trainer) -> Any:
    return nnx.state(trainer.model), nnx.state(trainer.optimizer), trainer.best


def _arrays(trainer: Trainer) -> dict[str, Any]:
    """All arrays of a trainer, by their paths; random keys as the words they consist of."""
    return {
        jax.tree_util.keystr(path): jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(_states(trainer))
    }


def _as_leaf(array: Any, leaf: Any) -> Any:
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _capacities(trainer: Trainer) -> dict[str, Any]:
    return {name: room.capacity if isinstance(room, Plan) else room for name, room in trainer.rooms.items()}


def _digest(arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.asarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _data_digest(trainer: Trainer) -> str:
    return hashlib.sha256(repr(trainer.task.train).encode()).hexdigest()
