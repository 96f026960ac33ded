"""The processes of a step on a mesh that spans several processes (`jax.distributed`)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jitbatch.step.channel import Channel, Message
from jitbatch.step.places import Bound
from jitbatch.util import compat
from jitbatch.util.errors import ProcessError


class Processes:
    """The other processes of a step.

    Attributes:
        channel: the channel for calls that were not planned ahead of time.
        have_met: whether the step has been called.
    """

    def __init__(self, step: str, processes: Sequence[int], timeout: float):
        self.channel = Channel(processes, {"the step": step}, seconds=timeout)
        self.have_met = False

    @contextmanager
    def part(self) -> Iterator[Channel]:
        """A channel for a sequence of minibatches. The other processes learn how the sequence ended."""
        channel = self.channel.part()
        try:
            yield channel
        except GeneratorExit:
            channel.leave()
            raise
        except BaseException as error:
            channel.leave(error)
            raise
        channel.exchange(Message({}, is_last=True))

    def examples(self, first_samples: Callable[[], Mapping[str, Any]] | None) -> Mapping[str, Any] | None:
        """Requests examples of samples from the other processes, in the first call of the step.

        Args:
            first_samples: returns the message about the first samples of this process; None if it has no samples.

        Returns:
            The message of a process with samples; None if all processes have samples, or none has.
        """
        said = self.channel.exchange(Message({}) if first_samples is None else None)
        self.have_met = True
        others = [process for process in self.channel.processes if process not in said]
        if not said or not others:
            return None
        own = None
        if first_samples is not None and others[0] == jax.process_index():
            own = Message(first_samples())
        return self.channel.exchange(own)[others[0]]

    @contextmanager
    def told(self) -> Iterator[None]:
        """A context that reports an exception inside of it to the other processes."""
        try:
            yield
        except BaseException as error:
            self.channel.leave(error)
            raise

    def compare(self, call: Bound, program: Callable[[], str]) -> None:
        """Compares a new program, and the arrays of its first call, in all processes.

        Raises:
            ProcessError: in all processes, if they differ.
        """
        own = {"program": _digest([program().encode()]), "arguments": _digest(_contents(call))}
        said = self.channel.exchange(Message(own))
        for name in own:
            different = [process for process, content in said.items() if content[name] != said[min(said)][name]]
            if different:
                raise ProcessError(_DIFFERENCES[name].format(different[0], min(said)))


_DIFFERENCES = {
    "program": "process {} has compiled another program than process {}. All processes must run the same code",
    "arguments": "process {} was called with other arrays than process {}. Parameters must be equal in all processes; "
    "arrays with one row per sample are NumPy arrays, or named: jitbatch.jit(rows=...)",
}


def _contents(call: Bound) -> Iterator[bytes]:
    """Yields the bytes of arrays that are not on the mesh yet. They become replicated."""
    for name, value in call.arguments.items():
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
                array = jax.random.key_data(leaf) if compat.is_prng_key(leaf.dtype) else leaf
                yield f"{name} {leaf.dtype} {leaf.shape}".encode()
                yield np.asarray(array).tobytes()


def _digest(parts: Iterator[bytes] | Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
