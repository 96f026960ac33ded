"""Rounds of messages between the processes of a program, through the coordination service of `jax.distributed`.

In a round, each process may send a message, waits for all others, and reads their messages. No device takes part, so a
round may run in a planning thread beside a step. Without messages, a round is one barrier and one read of an empty
folder. Messages are JSON.
"""

import atexit
import itertools
import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import jax

from jitbatch._version import __version__
from jitbatch.util import compat
from jitbatch.util.errors import ProcessError

SECONDS = 1800.0
"""The default time that a process waits for others. It is long, because others may compile, evaluate or write a
checkpoint. JAX notices a dead process earlier, by its heartbeat."""

SECONDS_AT_EXIT = 60.0
"""The time that an ending process waits until the others have read its message."""

_numbers = itertools.count()


class Message(NamedTuple):
    """A message of a process in a round.

    Attributes:
        content: data, for the caller.
        error: the text of an exception; "" without one.
        is_last: whether the process has left the channel.
    """

    content: Mapping[str, Any]
    error: str = ""
    is_last: bool = False


class LateError(ProcessError):
    """A process is alive, but has not reached this point in time."""


class Channel:
    """A sequence of rounds.

    Args:
        processes: the processes that take part.
        about: values that must be equal in all processes, by name. They are part of each message.
        name: the name of the channel. By default it is a number: all processes make their channels in one order.
        seconds: the time that a process waits for others that are alive.
    """

    newest: ClassVar["Channel | None"] = None
    """The channel that was used last. If this process ends by an exception, the other processes wait there."""

    def __init__(
        self, processes: Sequence[int], about: Mapping[str, str], name: str | None = None, seconds: float = SECONDS
    ):
        self.processes = tuple(processes)
        self._seconds = seconds
        self.about = {
            "jitbatch": __version__,
            "jax": jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "floats": str(jax.dtypes.canonicalize_dtype(float)),
            **about,
        }
        self._name = f"jitbatch/{next(_numbers)}" if name is None else name
        self._me = jax.process_index()
        self._parts = itertools.count()
        self._round = 0
        self._said: str | None = None  # the key of this process's message in the previous round
        self._problem: str | None = None

    def part(self) -> "Channel":
        """Returns a separate channel for the same processes."""
        return Channel(self.processes, self.about, f"{self._name}/{next(self._parts)}", self._seconds)

    def exchange(self, message: Message | None, seconds: float | None = None) -> dict[int, Mapping[str, Any]]:
        """Runs a round.

        Args:
            message: the message of this process, or None.
            seconds: the time to wait for the others; by default that of the channel.

        Returns:
            The contents of the messages, by process.

        Raises:
            ProcessError: a process sent an error, has left, differs in `about`, or does not answer.
        """
        if self._problem is not None:
            raise ProcessError(self._problem)
        if Channel.newest is None:
            atexit.register(_leave_at_exit)  # runs before JAX's own handler, which waits for all processes
        Channel.newest = self
        try:
            return self._exchange(message, seconds or self._seconds)
        except ProcessError as error:
            self._problem = str(error)
            raise

    def _exchange(self, message: Message | None, seconds: float) -> dict[int, Mapping[str, Any]]:
        found = {process: json.loads(text) for process, text in sorted(self._run(message, seconds).items())}
        errors = {process: one["error"] for process, one in found.items() if one["error"]}
        for process, text in errors.items():
            raise ProcessError(f"process {process} of {jax.process_count()} has failed: {text}")
        for process, one in found.items():
            self._check_about(process, one["about"])
        left = [process for process, one in found.items() if one["is_last"]]
        if left and len(left) < len(self.processes):
            others = sorted(set(self.processes) - set(left))
            raise ProcessError(
                f"there are no more minibatches on {_named(left)}, unlike on {_named(others)}. All processes must go "
                "through as many minibatches: `jitbatch.data.local` gives each its part of one list, which may be "
                "empty"
            )
        return {process: one["content"] for process, one in found.items()}

    def leave(self, error: BaseException | None = None) -> None:
        """Tells the others, in their next round, that this process has left. Does not wait for them."""
        if self._problem is not None:
            return
        self._problem = "this process has left a sequence of minibatches, which other processes may be at"
        message = Message({}, described(error) if error else "", True)
        tell = threading.Thread(target=self._tell, args=(message, self._seconds), name="jitbatch-leaves", daemon=True)
        tell.start()

    def leave_at_exit(self) -> None:
        """Tells the others that this process ends, and the exception that ended it. Waits for them for a while."""
        if self._problem is None:
            error = getattr(sys, "last_value", None)  # Python sets it if an exception ends a script
            self._tell(Message({}, described(error) if error else "", True), SECONDS_AT_EXIT)

    def _tell(self, message: Message, seconds: float) -> None:
        with suppress(Exception):  # no process is there to read it
            self._run(message, seconds)

    def _run(self, message: Message | None, seconds: float) -> dict[int, str]:
        self._round += 1
        folder = f"{self._name}/{self._round}/"
        key = f"{folder}{self._me}"
        try:
            if message is not None:
                compat.send(key, json.dumps({"about": self.about, **message._asdict()}))
            compat.wait_for_processes(self._name, seconds, self.processes)
            if self._said is not None:
                compat.forget(self._said)  # all processes have read it, because they have come to this round
            self._said = None if message is None else key
            return _texts(folder)
        except jax.errors.JaxRuntimeError as error:
            with suppress(jax.errors.JaxRuntimeError):  # a process that failed and ended may have sent the reason
                texts = _texts(folder)
                if any(json.loads(text)["error"] for text in texts.values()):
                    return texts
            raise _failure(str(error), seconds) from error

    def _check_about(self, process: int, about: Mapping[str, str]) -> None:
        for name in (*self.about, *about):
            own, other = self.about.get(name), about.get(name)
            if own != other:
                raise ProcessError(
                    f"process {process} differs from process {self._me} in {name}: {other}, not {own}. All "
                    "processes must run the same code on the same versions, with the same dtypes"
                )


def _leave_at_exit() -> None:
    if Channel.newest is not None:
        Channel.newest.leave_at_exit()


def _texts(folder: str) -> dict[int, str]:
    return {int(process): text for process, text in compat.received(folder).items()}


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _named(processes: Sequence[int]) -> str:
    """
    >>> _named([1]), _named([0, 2])
    ('process 1', 'processes 0, 2')
    """
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def _failure(text: str, seconds: float) -> ProcessError:
    """Returns the meaning of an error of the coordination service. jax 0.10 calls processes tasks.

    >>> _failure("Barrier timed out. Some timed out task names:\\n1\\n", 60)
    LateError('process 1 of 1 has not come to this point within 60 seconds. All processes must call the same steps as \
often, in the same order')
    >>> str(_failure("task is set to ERROR: Task 1 heartbeat timeout.", 60))[:27]
    'process 1 of 1 has ended: i'
    """
    total = jax.process_count()
    late = re.findall(r"(?<=\n)\d+", text.partition("timed out task names:")[2])
    if late:
        return LateError(
            f"{_named(list(map(int, late)))} of {total} has not come to this point within {seconds:g} seconds. All "
            "processes must call the same steps as often, in the same order"
        )
    dead = sorted({int(number) for number in re.findall(r"[Tt]ask:? ?(\d+)", text)} - {jax.process_index()})
    found = f"{_named(dead)} of {total}" if dead else "process 0, which holds the coordination service,"
    return ProcessError(
        f"{found} has ended: it was killed, or failed; its own messages say why. Start all processes again ({text})"
    )
