"""Threads of the library. They are stopped before Python ends.

A daemon thread inside of compiled code at the end of Python would abort the process. A thread that is not a daemon
would keep the process alive as long as its object exists. So the threads are daemons, and are stopped at exit.
"""

import atexit
import os
import weakref
from typing import Protocol

AT_EXIT = 5.0
"""The number of seconds that the process waits at exit for work that a thread has started."""


class Stoppable(Protocol):
    """An object with a thread."""

    def stop(self) -> None:
        """Asks the thread to end, without waiting."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended."""
        ...


_running: "weakref.WeakSet[Stoppable]" = weakref.WeakSet()


def stop_at_exit(worker: Stoppable) -> None:
    """Stops a worker before Python ends. Call it before its thread starts."""
    _running.add(worker)


@atexit.register
def _stop_all() -> None:
    workers = list(_running)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(AT_EXIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _running.clear())  # a child process does not have the threads
