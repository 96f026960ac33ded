"""Threads of the library, which are stopped before Python ends.

A daemon thread that is inside of compiled code when Python ends would abort the process. A thread that is no daemon
would keep the process alive as long as its object is. So the threads are daemons that are stopped at exit.
"""

import atexit
import os
import weakref
from typing import Protocol

AT_EXIT = 5.0
"""Seconds that the process waits at exit for what a thread has begun."""


class Stoppable(Protocol):
    """Something with a thread."""

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
    os.register_at_fork(after_in_child=lambda: _running.clear())  # the threads are not in the child
