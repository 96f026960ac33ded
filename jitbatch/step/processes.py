"""The processes of a step on a mesh that spans several processes (`jax.distributed`)."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jitbatch.step.channel import Channel, Message
from jitbatch.step.places import Bound
from jitbatch.step.samples import Samples
from jitbatch.step.split import Rows
from jitbatch.step.watch import WATCH
from jitbatch.util import compat
from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.errors import ProcessError
from jitbatch.util.sites import describe_source


class Processes:
    """The other processes of a step.

    Attributes:
        channel: the channel for calls that were not planned ahead of time.
        have_met: whether the step has been called.
    """

    def __init__(self, step: Callable[..., Any], processes: Sequence[int], timeout: float):
        name, where = describe_source(step)
        self._step = f"{name} ({os.path.basename(where)})"  # the folder may be another one on each machine
        self.channel = Channel(processes, {}, f"jitbatch/steps/{self._step}", seconds=timeout)
        self.have_met = False
        self._calls = self._sequences = 0

    @contextmanager
    def part(self) -> Iterator[Channel]:
        """A channel for a sequence of minibatches. The other processes learn how the sequence ended."""
        self._sequences += 1
        channel = self.channel.part(f"sequence {self._sequences} of minibatches for {self._step}")
        try:
            yield channel
        except GeneratorExit as closed:
            channel.leave(closed.__context__)  # an exception in the loop over the minibatches closes them
            raise
        except BaseException as error:
            channel.leave(error)
            raise
        self.channel.end(channel)

    def examples(self, first_samples: Callable[[], Mapping[str, Any]] | None) -> Mapping[str, Any] | None:
        """Requests examples of samples from the other processes, in a call with a new use of samples.

        Args:
            first_samples: returns the message about the first samples of this process; None if it has no samples.

        Returns:
            The message of a process with samples; None if all processes have samples, or none has.
        """
        said = self._exchange("new samples", {} if first_samples is None else None)
        self.have_met = True
        others = [process for process in self.channel.processes if process not in said]
        if not said or not others:
            return None
        is_mine = first_samples is not None and others[0] == jax.process_index()
        return self._exchange("examples", first_samples() if is_mine and first_samples else None)[others[0]]

    @contextmanager
    def told(self) -> Iterator[None]:
        """A context for a call of the step. It reports an exception inside of it to the other processes."""
        self.channel.check()
        self._calls += 1
        self.channel.at = f"call {self._calls} of {self._step}"
        WATCH.calls()
        try:
            yield
        except BaseException as error:
            self.channel.leave(error)
            raise

    @contextmanager
    def running(self) -> Iterator[Callable[[Any], None]]:
        """A context in which the step starts a device program. Yields a function that takes its result."""
        with WATCH.running(self.channel.name) as ran:
            yield ran

    def compare(self, call: Bound, compiled: Callable[[], Any]) -> None:
        """Compiles a new program, and compares it and the arguments of its first call in all processes.

        Args:
            call: the call.
            compiled: lowers and compiles the program. Returns the lowered form.

        Raises:
            ProcessError: in all processes, if they differ, or if a process raises an exception.
        """
        program = _digest([compiled().as_text().encode()])
        said = self._exchange("its program", {"program": program, "arguments": _arguments(call)})
        missing = [process for process in self.channel.processes if process not in said]
        if missing:
            raise ProcessError(
                f"process {missing[0]} has no new program for {self.channel.at}, unlike process {min(said)}. "
                + _SAME_CODE
            )
        different = _different(said, "program")
        self._compare_arguments(said)
        if different:
            raise ProcessError(
                f"process {different[0]} has compiled another program than process {min(said)}. {_SAME_CODE}"
            )

    def compare_sometimes(self, call: Bound) -> None:
        """Compares the arguments of calls 2, 4, 8 and so on in all processes, except for those on the mesh.

        Raises:
            ProcessError: in all processes, if they differ.
        """
        if self._calls > 1 and self._calls & (self._calls - 1) == 0:
            self._compare_arguments(self._exchange("its arguments", {"arguments": _arguments(call, is_on_mesh=False)}))

    def _compare_arguments(self, said: Mapping[int, Mapping[str, Any]]) -> None:
        names = dict.fromkeys(name for content in said.values() for name in content["arguments"])
        for name in names:
            values = {process: {name: content["arguments"].get(name)} for process, content in said.items()}
            different = _different(values, name)
            if different:
                raise ProcessError(
                    f"process {different[0]} was called with another value of {name!r} than process {min(said)}, in "
                    f"{self.channel.at}. Parameters and numbers must be equal in all processes; arguments with one row "
                    "per sample are NumPy arrays, and named: jitbatch.jit(rows=...)"
                )

    def _exchange(self, what: str, content: Mapping[str, Any] | None) -> Mapping[int, Mapping[str, Any]]:
        at = self.channel.at
        self.channel.at = f"{at} ({what})"
        try:
            return self.channel.exchange(None if content is None else Message(content))
        finally:
            self.channel.at = at


_SAME_CODE = "All processes must run the same code, and call steps with arguments of equal shapes and dtypes"


def _different(said: Mapping[int, Mapping[str, Any]], name: str) -> list[int]:
    """Returns the processes that say something else than the first."""
    return [process for process, content in said.items() if content[name] != said[min(said)][name]]


def _arguments(call: Bound, is_on_mesh: bool = True) -> dict[str, str]:
    """Returns a digest of each argument that is not split over the processes.

    Args:
        call: the call.
        is_on_mesh: whether arrays count that are on the mesh already.
    """
    found = {name: list(_contents(value, is_on_mesh)) for name, value in call.arguments.items()}
    return {name: _digest(contents) for name, contents in found.items() if contents}


def _contents(value: Any, is_on_mesh: bool) -> Iterator[bytes]:
    for leaf in jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, Samples | Rows)):
        if isinstance(leaf, jax.Array):
            if leaf.is_fully_addressable or (is_on_mesh and leaf.is_fully_replicated):
                yield from _content(jax.random.key_data(leaf) if compat.is_prng_key(leaf.dtype) else leaf)
        elif isinstance(leaf, np.ndarray | np.generic) or type(leaf) in NUMBERS:
            yield from _content(leaf)


def _content(leaf: Any) -> Iterator[bytes]:
    array = np.asarray(leaf)
    yield f"{array.dtype} {array.shape}".encode()
    yield array.tobytes()


def _digest(parts: Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
