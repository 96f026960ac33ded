"""Watching the other processes of a program from a thread, where no round of messages can help.

A round (see `step/channel`) tells an exception to the processes that come to it. Two cases are left:

- A process has failed while others run a device program that waits for it. Nothing can interrupt them there. So their
  threads read of the failure, and end the process, as JAX's heartbeat does for a process that has died.
- Two processes wait at different points, each for the other. Their threads read where the others wait, and each comes
  to the other's round with a message that says where its process is.
"""

import json
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax

from jitbatch.util import compat
from jitbatch.util.errors import ProcessError
from jitbatch.util.threads import stop_at_exit

FAILED, WAITING, ENDED = "jitbatch/failed/", "jitbatch/waiting/", "jitbatch/ended/"
"""Folders with a key for each process: what has failed there, where it waits, and whether it has ended itself."""

EVERY = 1.0
"""The seconds between two looks at the other processes."""

GRACE = 10.0
"""The seconds that a process gets to come back from the devices by itself, after another process has failed."""

LEAVES = 2.0
"""The seconds that a process gets from leaving its minibatches to its end, if an exception is the reason."""

WAITS_LONG = 5.0
"""The seconds after which a process says where it waits."""

SHUTDOWN = 10.0
"""The seconds that a process that ends itself waits for others in JAX's shutdown."""


class Point(NamedTuple):
    """A round that a process waits in: its channel and number, and what the process does there, for people."""

    channel: str
    round: int
    at: str


class Watch:
    """The thread of this process that watches the others. It starts with the first round."""

    def __init__(self) -> None:
        self._started = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jitbatch-watches", daemon=True)
        self._own: dict[str, str] = {}  # what has failed here, by channel; "" is the process
        self._failed: dict[int, Mapping[str, str]] = {}  # what has failed elsewhere
        self._seen: dict[tuple[int, str], float] = {}  # when that was read first
        self._point: tuple[Point, float, Callable[[Point], None]] | None = None
        self._others: dict[int, Point] = {}  # where others waited at the previous look
        self._has_said: bool = False  # whether there is a message about the point of this process
        self._callers: set[int] = set()  # the threads that have called steps
        self._running: tuple[str, Any] | None = None  # the channel of the newest step, and a result or None

    # What this process does

    def tell(self, channel: str, text: str) -> None:
        """Tells the others that a channel of this process has failed; "" for the whole process."""
        self._own.setdefault(channel, text)
        with suppress(Exception):  # the service may have gone
            compat.send(f"{FAILED}{jax.process_index()}", json.dumps(self._own))

    def failure(self, channel: str) -> str | None:
        """Returns the failure of another process that this process has read of, for calls of a channel."""
        for process, texts in self._failed.items():
            text = texts.get(channel) or texts.get("")
            if text:
                return has_failed(process, text)
        return None

    def wait_for_failure(self, processes: Sequence[int]) -> None:
        """Waits a moment for processes that have left a channel to end by an exception.

        Raises:
            ProcessError: one of them has ended so.
        """
        until = time.monotonic() + LEAVES
        while time.monotonic() < until:
            found = {process: texts[""] for process, texts in _read(FAILED).items() if "" in texts}
            for process in found.keys() & set(processes):
                raise ProcessError(has_failed(process, found[process]))
            time.sleep(LEAVES / 10)

    def have_ended(self) -> bool:
        """Whether all other processes have ended themselves because of this one."""
        with suppress(Exception):
            return len(compat.received(ENDED)) >= jax.process_count() - 1
        return True

    @contextmanager
    def waiting(self, point: Point, meet: Callable[[Point], None]) -> Iterator[None]:
        """A context in which this thread waits in a round.

        Args:
            point: the round.
            meet: tells a process that waits in another round where this process is.
        """
        self._start()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._point = point, time.monotonic(), meet
        try:
            yield
        finally:
            self._point = None

    @contextmanager
    def running(self, channel: str) -> Iterator[Callable[[Any], None]]:
        """A context in which this thread starts a device program. Yields a function that takes the result."""
        self._running = channel, None
        ran: list[Any] = []
        try:
            yield ran.append
        finally:
            leaves = (leaf for leaf in jax.tree.leaves(ran) if isinstance(leaf, jax.Array))
            first = next(leaves, None)
            self._running = None if first is None else (channel, weakref.ref(first))

    def calls(self) -> None:
        """Notes that this thread calls steps."""
        self._callers.add(threading.get_ident())

    # The thread

    def stop(self) -> None:
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended."""
        if self._started:
            self._thread.join(timeout)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            stop_at_exit(self)
            self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            with suppress(jax.errors.JaxRuntimeError):  # the service has gone: JAX ends the process
                self.look()

    def look(self) -> None:
        """Looks at the other processes once."""
        me, now = jax.process_index(), time.monotonic()
        self._failed = {process: found for process, found in _read(FAILED).items() if process != me}
        for process, texts in self._failed.items():
            for channel in texts:
                self._seen.setdefault((process, channel), now)
        text = self._waits_for_failed(now)
        if text is not None:
            end(text)
        self._compare_points(me, now)

    def _waits_for_failed(self, now: float) -> str | None:
        """Returns the failure of a process that this process has waited for on a device, for a while."""
        if self._running is None:
            return None
        channel, result = self._running
        array = None if result is None else result()
        if result is not None and (array is None or array.is_deleted() or array.is_ready()):
            return None
        waited = [
            now - self._seen[process, failed]
            for process, texts in self._failed.items()
            for failed in texts
            if failed in ("", channel)
        ]
        return self.failure(channel) if waited and max(waited) > GRACE else None

    def _compare_points(self, me: int, now: float) -> None:
        """Says where the main thread waits, if it does for long, and looks for a process that waits elsewhere."""
        waiting = self._point if self._callers <= {threading.main_thread().ident} else None
        if waiting is None or now - waiting[1] < WAITS_LONG:
            if self._has_said:
                compat.forget(f"{WAITING}{me}")
            self._has_said, self._others = False, {}
            return
        point, _, meet = waiting
        compat.send(f"{WAITING}{me}", json.dumps(point))
        self._has_said = True
        before, self._others = self._others, {process: Point(*found) for process, found in _read(WAITING).items()}
        for process, other in self._others.items():
            if process != me and other[:2] != point[:2] and before.get(process) == other:
                meet(other)


WATCH = Watch()


def end(text: str) -> None:
    """Ends this process with a `ProcessError`, from another thread than the main one, which waits on a device."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_stack(frame)] if frame else []
    lines += traceback.format_exception_only(ProcessError(f"{text} (this process was waiting for it on a device)"))
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
    sys.stdout.flush()
    with suppress(Exception):
        compat.send(f"{ENDED}{jax.process_index()}", text)
    shutdown = threading.Thread(target=jax.distributed.shutdown, daemon=True)  # else the others wait for this process
    shutdown.start()
    shutdown.join(SHUTDOWN)
    os._exit(1)


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def has_failed(process: int, text: str) -> str:
    return f"process {process} of {jax.process_count()} has failed: {text}"


def _read(folder: str) -> dict[int, Any]:
    return {int(process): json.loads(text) for process, text in compat.received(folder).items()}
