"""The thread of a server. Whenever the device is free, it takes waiting requests and answers them."""

import contextvars
import itertools
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from jitbatch.serve.arguments import Given, Shared
from jitbatch.serve.limits import Limits, how_many
from jitbatch.serve.requests import Answer, AnswerFuture, Request
from jitbatch.serve.stats import Counts
from jitbatch.util import compat
from jitbatch.util.errors import Overloaded, ServerClosed
from jitbatch.util.threads import stop_at_exit

OPEN, DRAINING, REJECTING = range(3)
"""The states of a worker: it accepts requests; it only answers accepted requests; it refuses the accepted ones, too."""


class Runner(Protocol):
    """Runs requests. Only one thread at a time uses it, except for `shared`.

    Attributes:
        shared: the shared arguments for all runs that begin from now on.
        batches, retried, programs: the numbers of batches that ran, of batches that failed and were run one by one, and
            of sizes with a compiled program.
        held: the accepted requests without an answer.
        is_open: whether further requests may join.
    """

    shared: Shared
    batches: int
    retried: int

    @property
    def programs(self) -> int: ...
    @property
    def held(self) -> list[Request]: ...
    @property
    def is_open(self) -> bool: ...

    def admit(self, requests: Sequence[Request]) -> list[Answer]:
        """Accepts requests. Returns the answers to refused requests."""
        ...

    def advance(self) -> list[Answer]:
        """Runs the next batch or sync, and returns the answers."""
        ...

    def drop(self) -> list[Request]:
        """Drops the accepted requests, and returns them."""
        ...

    def warm_up(self, columns: Given, counts: Sequence[int]) -> None:
        """Compiles the programs for samples like these.

        Args:
            columns: typical samples.
            counts: the numbers of samples that run together.
        """
        ...


class Worker:
    """The queue of requests, and the thread that answers them.

    A caller holds the lock for microseconds only. No user code runs under the lock, and no answer is given under it.

    Args:
        name: the name of the function, for errors.
        runner: runs the requests.
        limits: the limits of the server.
    """

    def __init__(self, name: str, runner: Runner, limits: Limits):
        self.name = name
        self.runner = runner
        self.limits = limits
        self.counts = Counts()
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # so that a waiting caller cannot cancel it
        self._waiting: dict[Future[Any], Request] = {}
        self._changed = threading.Condition(threading.RLock())  # reentrant, for finalizers in this thread
        self._state = OPEN
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._context = contextvars.copy_context()
        self._settings = compat.trace_context()
        self._process = os.getpid()

    # For callers

    def submit(self, given: Given) -> "Future[Any]":
        """Accepts a request, or raises `Overloaded` or `ServerClosed`."""
        request = Request(given, AnswerFuture(), time.monotonic())
        self._check_process()
        with self._changed:
            if self._state != OPEN:
                raise self._closed()
            if len(self._waiting) >= self.limits.max_waiting:
                self.counts.overloaded += 1
                raise Overloaded(
                    f"{len(self._waiting)} requests wait for {self.name} already: the server is asked for more than it "
                    "can do. Try again later, ask less often, or give a larger max_waiting"
                )
            self._start()
            self.counts.accepted += 1
            self._waiting[request.future] = request
            self._changed.notify_all()
        request.future.add_done_callback(self._drop_if_cancelled)
        return request.future

    def close(self, drain: bool) -> None:
        """Stops accepting requests, and ends the thread after all accepted requests."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._state = max(self._state, DRAINING if drain else REJECTING)
            if self._thread is None and not self.ended.done():
                self.ended.set_result(None)
            self._changed.notify_all()

    def stop(self) -> None:
        self.close(drain=False)

    def join(self, timeout: float | None = None) -> None:
        if self._thread not in (None, threading.current_thread()) and os.getpid() == self._process:
            self._thread.join(timeout)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Starts the thread, unless it runs already."""
        self._check_process()
        with self._changed:
            if self._state != OPEN:
                raise self._closed()
            self._start()

    # The thread

    def turn(self, may_wait: bool = True) -> bool:
        """Takes requests, and runs the next batch or sync.

        Args:
            may_wait: whether to wait for requests if there is nothing to do.

        Returns:
            Whether there may be more to do. False if the server is closed, or if there was nothing to do and `may_wait`
            is False.
        """
        if self.runner.is_open:
            held = self.runner.held
            requests = self._take(held, may_wait and not held)
            if not requests and not held:
                return False
            self._answer(self.runner.admit(requests))
        if self._state == REJECTING:
            self._refuse([*self._take_all(), *self.runner.drop()])
        if self.runner.held:
            self._answer(self.runner.advance())
        return True

    def _start(self) -> None:
        if self._thread is None:
            run = self._context.run
            self._thread = threading.Thread(target=run, args=(self._run,), name="jitbatch-server", daemon=True)
            stop_at_exit(self)
            self._thread.start()

    def _run(self) -> None:
        try:
            if compat.trace_context() != self._settings:
                raise ServerClosed(
                    f"the server of {self.name} was made where JAX's settings are changed for one thread (with "
                    "jax.enable_x64(), jax.default_matmul_precision(...) or the like), which its own thread does not "
                    "see. Change them for the whole program with jax.config.update"
                )
            while self.turn():
                pass
        except BaseException as error:
            self._cause = error
        finally:
            with self._changed:
                self._state = REJECTING
            self._refuse([*self._take_all(), *self.runner.held])
            self.ended.set_result(None)

    def _take(self, held: Sequence[Request], may_wait: bool) -> list[Request]:
        """Takes as many requests as fit into a batch, after the time in which they wait for others.

        Args:
            held: the requests in the batch so far.
            may_wait: whether to wait for requests if there are none.

        Returns:
            The requests; none if the server is closed and no request waits.
        """
        while True:
            with self._changed:
                while may_wait and not self._waiting and self._state == OPEN:
                    self._changed.wait()
                waiting = list(itertools.islice(self._waiting.values(), self.limits.max_batch_size))
                is_last = self._state != OPEN
            if not waiting:
                return []
            count = self._fitting(waiting, held)
            remaining = waiting[0].arrived + self.limits.max_delay - time.monotonic()
            if is_last or held or remaining <= 0 or count < len(waiting) or count >= self.limits.max_batch_size:
                return self._taken(waiting[:count])
            with self._changed:
                if len(self._waiting) <= len(waiting) and self._state == OPEN:
                    self._changed.wait(remaining)

    def _fitting(self, waiting: Sequence[Request], held: Sequence[Request]) -> int:
        """Returns the number of waiting requests that fit into a batch. It is one if the user's `batch_size_fn` fails:
        the first request may be at fault, and then it fails alone."""
        most, size_of = self.limits.max_batch_size, self.limits.batch_size_fn
        if size_of is None:
            return min(len(waiting), max(most - len(held), 0))
        try:
            return how_many([one.given.sample for one in waiting], [one.given.sample for one in held], most, size_of)
        except BaseException:
            return 0 if held else 1

    def _take_all(self) -> list[Request]:
        with self._changed:
            return self._taken(list(self._waiting.values()))

    def _taken(self, requests: Sequence[Request]) -> list[Request]:
        """Removes cancelled requests, and returns the others."""
        with self._changed:
            mine = [one for one in requests if self._waiting.pop(one.future, None) is not None]
            return [one for one in mine if one.future.set_running_or_notify_cancel()]

    def _answer(self, answers: Sequence[Answer]) -> None:
        now = time.monotonic()
        for answer in answers:
            if isinstance(answer.error, CancelledError):
                self.counts.cancelled += 1
            else:
                self.counts.note(answer.error is not None, now - answer.request.arrived)
            answer.give()

    def _refuse(self, requests: Sequence[Request]) -> None:
        self._answer([Answer(request, error=self._closed()) for request in requests])

    def _drop_if_cancelled(self, future: "Future[Any]") -> None:
        if future.cancelled():
            with self._changed:
                self._waiting.pop(future, None)
                self.counts.cancelled += 1

    def _closed(self) -> ServerClosed:
        error = ServerClosed(f"the server of {self.name} is closed")
        if self._cause is not None:
            error = ServerClosed(f"the server of {self.name} has failed: {type(self._cause).__name__}: {self._cause}")
            error.__cause__ = self._cause
        return error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ServerClosed(
                f"the server of {self.name} was made in another process, and its thread is not in this one, which was "
                "forked from that. Make a server in each process"
            )
