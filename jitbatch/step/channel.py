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
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import jax

from jitbatch._version import __version__
from jitbatch.step.watch import WATCH, Point, described, has_failed
from jitbatch.util import compat
from jitbatch.util.errors import ProcessError

SECONDS = 1800.0
"""The default time that a process waits for others. It is long, because others may compile, evaluate or write a
checkpoint. JAX notices a dead process earlier, by its heartbeat."""

SECONDS_AT_EXIT = 60.0
"""The time that an ending process waits until the others have read its message."""

AFTER_SHUTDOWN = 5.0
"""The time that an ending process waits for its own threads."""

_numbers: dict[str, "itertools.count[int]"] = {}
"""For each name of channels, the numbers of those to come."""

_telling: list[threading.Thread] = []
"""The threads that tell other processes that this one has left a channel. They may wait for the others."""


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
        name: the name of the channel, such as that of a step. All processes make channels of one name in one order.
        seconds: the time that a process waits for others that are alive.

    Attributes:
        at: what this process does in the next round, such as "call 3 of train". It must be equal in all processes.
    """

    used: ClassVar[dict[str, "Channel"]] = {}
    """The channels that have been used, by name. If this process ends, the other processes may wait there."""

    def __init__(self, processes: Sequence[int], about: Mapping[str, str], name: str, seconds: float = SECONDS):
        self.processes = tuple(processes)
        self._seconds = seconds
        self.about = {
            "jitbatch": __version__,
            "jax": jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "floats": str(jax.dtypes.canonicalize_dtype(float)),
            **about,
        }
        self.at = name
        self.name = f"{name}/{next(_numbers.setdefault(name, itertools.count()))}"
        self._me = jax.process_index()
        self._round = 0
        self._said: list[str] = []  # the keys of this process's messages, which others may still read
        self._of_ended: list[str] = []  # those of parts that have ended
        self._problem: str | None = None

    def part(self, at: str) -> "Channel":
        """Returns a separate channel for the same processes."""
        part = Channel(self.processes, self.about, f"{self.name}/parts", self._seconds)
        part.at = at
        part._said, self._of_ended = self._of_ended, []
        return part

    def end(self, part: "Channel") -> None:
        """Runs the last round of a part of this channel."""
        part.exchange(Message({}, is_last=True))
        self._of_ended += part._said
        Channel.used.pop(part.name, None)

    def check(self) -> None:
        """Raises the `ProcessError` of an earlier round, or of a process that has failed since."""
        if self._problem is None:
            self._problem = WATCH.failure(self.name)
            if self._problem is not None:
                self._tell_aside(Message({}, is_last=True), self._seconds)  # the process that failed may wait for it
        if self._problem is not None:
            raise ProcessError(self._problem)

    def exchange(self, message: Message | None, seconds: float | None = None) -> dict[int, Mapping[str, Any]]:
        """Runs a round.

        Args:
            message: the message of this process, or None.
            seconds: the time to wait for the others; by default that of the channel.

        Returns:
            The contents of the messages, by process.

        Raises:
            ProcessError: a process sent an error, has left, differs in `about` or `at`, or does not answer.
        """
        self.check()
        _register_at_exit()
        Channel.used[self.name] = self
        try:
            return self._exchange(message, seconds or self._seconds)
        except ProcessError as error:
            self._problem = str(error)
            raise

    def _exchange(self, message: Message | None, seconds: float) -> dict[int, Mapping[str, Any]]:
        found = {process: json.loads(text) for process, text in sorted(self._run(message, seconds).items())}
        errors = {process: one["error"] for process, one in found.items() if one["error"]}
        for process, text in errors.items():
            raise ProcessError(has_failed(process, text))
        for process, one in found.items():
            if one["at"] != self.at and not one["is_last"]:
                if "waits" in one["content"]:
                    self._meet(Point(*one["content"]["waits"]))  # so that it has an error, too
                raise ProcessError(
                    f"process {process} is at {one['at']}, but process {self._me} is at {self.at}. All processes must "
                    "call the same steps as often, in the same order"
                )
            self._check_about(process, one["about"])
        left = [process for process, one in found.items() if one["is_last"]]
        if left and len(left) < len(self.processes):
            others = sorted(set(self.processes) - set(left))
            if self._me not in left:
                WATCH.wait_for_failure(left)  # an exception may have ended the loop over its minibatches
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
        Channel.used.pop(self.name, None)
        if error is None:
            self._problem = "this process has left a sequence of minibatches, which other processes may be at"
        else:
            self._problem = f"an earlier call has failed: {described(error)}"
            WATCH.tell(self.name, described(error))
        message = Message({}, described(error) if error else "", True)
        self._tell_aside(message, self._seconds)

    def say_at_exit(self, error: BaseException | None) -> None:
        """Tells the others, in a thread, that this process ends, and the exception that ends it."""
        self._tell_aside(Message({}, described(error) if error else "", True), SECONDS_AT_EXIT)

    def _tell_aside(self, message: Message, seconds: float) -> None:
        def tell() -> None:
            with suppress(Exception):  # no process is there to read it
                self._run(message, seconds)

        thread = threading.Thread(target=tell, name="jitbatch-leaves", daemon=True)
        _telling[:] = [*(other for other in _telling if other.is_alive()), thread]
        thread.start()

    def _run(self, message: Message | None, seconds: float) -> dict[int, str]:
        self._round += 1
        folder = f"{self.name}/rounds/{self._round}/"
        key = f"{folder}{self._me}"
        try:
            if message is not None:
                compat.send(key, json.dumps({"about": self.about, "at": self.at, **message._asdict()}))
            with WATCH.waiting(Point(self.name, self._round, self.at), self._meet):
                compat.wait_for_processes(self.name, seconds, self.processes)
            for said in self._said:
                compat.forget(said)  # all processes have read it, because they have come to this round
            self._said = [] if message is None else [key]
            return _texts(folder)
        except jax.errors.JaxRuntimeError as error:
            with suppress(jax.errors.JaxRuntimeError):  # a process that failed and ended may have sent the reason
                texts = _texts(folder)
                if any(json.loads(text)["error"] for text in texts.values()):
                    return texts
            raise _failure(str(error), seconds, self.at) from error

    def _meet(self, other: Point) -> None:
        """Comes to a round that another process waits in, while this process waits in a round of this channel."""
        channel = Channel.used.get(other.channel)
        if channel is None:
            channel = Channel.used[other.channel] = Channel(self.processes, {}, other.channel, self._seconds)
            channel.name = other.channel
        if channel._round < other.round and channel._problem is None:
            channel._problem = f"this process was at {self.at}, when another was at {other.at}"
            channel.at = self.at
            channel._tell_aside(Message({"waits": [self.name, self._round, self.at]}), self._seconds)

    def _check_about(self, process: int, about: Mapping[str, str]) -> None:
        for name in (*self.about, *about):
            own, other = self.about.get(name), about.get(name)
            if own != other:
                raise ProcessError(
                    f"process {process} differs from process {self._me} in {name}: {other}, not {own}. All "
                    "processes must run the same code on the same versions, with the same dtypes"
                )


def _register_at_exit() -> None:
    """Registers `_leave_at_exit` once. It runs before JAX's own handler, which waits for all processes."""
    atexit.unregister(_leave_at_exit)
    atexit.register(_leave_at_exit)


def _leave_at_exit() -> None:
    error = getattr(sys, "last_value", None)  # Python sets it if an exception ends a script
    channels = [channel for channel in Channel.used.values() if channel._problem is None]
    if error is not None:
        WATCH.tell("", described(error))
    for channel in channels:
        channel.say_at_exit(error)
    until = time.monotonic() + SECONDS_AT_EXIT
    while any(thread.is_alive() for thread in _telling) and not WATCH.have_ended() and time.monotonic() < until:
        time.sleep(0.1)
    WATCH.stop()
    WATCH.join(AFTER_SHUTDOWN)
    if any(thread.is_alive() for thread in _telling):
        with suppress(Exception):
            jax.distributed.shutdown()  # ends their waiting. A thread that comes back later would abort the process
        for thread in _telling:
            thread.join(AFTER_SHUTDOWN)


def _texts(folder: str) -> dict[int, str]:
    return {int(process): text for process, text in compat.received(folder).items()}


def _named(processes: Sequence[int]) -> str:
    """
    >>> _named([1]), _named([0, 2])
    ('process 1', 'processes 0, 2')
    """
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def _failure(text: str, seconds: float, at: str) -> ProcessError:
    """Returns the meaning of an error of the coordination service. jax 0.10 calls processes tasks.

    >>> _failure("Barrier timed out. Some timed out task names:\\n1\\n", 60, "call 3 of train")
    LateError('process 1 of 1 has not come to call 3 of train within 60 seconds. All processes must call the same \
steps as often, in the same order')
    >>> str(_failure("task is set to ERROR: Task 1 heartbeat timeout.", 60, "call 3 of train"))[:27]
    'process 1 of 1 has ended: i'
    """
    total = jax.process_count()
    late = re.findall(r"(?<=\n)\d+", text.partition("timed out task names:")[2])
    if late:
        return LateError(
            f"{_named(list(map(int, late)))} of {total} has not come to {at} within {seconds:g} seconds. All processes "
            "must call the same steps as often, in the same order"
        )
    dead = sorted({int(number) for number in re.findall(r"[Tt]ask:? ?(\d+)", text)} - {jax.process_index()})
    found = f"{_named(dead)} of {total}" if dead else "process 0, which holds the coordination service,"
    return ProcessError(
        f"{found} has ended: it was killed, or failed; its own messages say why. Start all processes again ({text})"
    )
