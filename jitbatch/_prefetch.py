"""Planning ahead: the next minibatches are planned while the device runs the last one."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from jitbatch import _compat
from jitbatch._errors import ArgumentError, PlanError
from jitbatch._plan import Plan


class Plans(Iterator[Plan]):
    """Plans of minibatches in turn, made ahead of time. Made by `f.plans(...)`.

    Iterate over it; `close()` it, or use it as a context manager, to stop early. An exception, of the minibatches or of
    planning one of them, is raised in the place of the plan that could not be made.
    """

    def __init__(
        self, make: Callable[[tuple[Any, ...], Any], Plan], batches: Iterable[Any], like: Any, prefetch: int | None
    ):
        if prefetch is None:
            prefetch = 0 if jax.default_backend() == "cpu" else 2
        if prefetch < 0:
            raise ArgumentError(f"prefetch={prefetch} is negative: it is how many plans are made ahead of time")
        self._source = _plans(make, batches, like)
        self._worker = None if prefetch == 0 else _Worker(self._source, prefetch)
        if self._worker is not None:  # its thread does not hold on to this object: one that is dropped is closed
            weakref.finalize(self, self._worker.stop)

    def __next__(self) -> Plan:
        return next(self._source) if self._worker is None else self._worker.take()

    def close(self) -> None:
        """Make no further plans, wait until the thread has ended, and close the minibatches if they are a generator."""
        if self._worker is None or self._worker.close():
            self._source.close()

    def __enter__(self) -> "Plans":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _plans(make: Callable[[tuple[Any, ...], Any], Plan], batches: Iterable[Any], like: Any) -> Any:
    # A compiled program takes NumPy's arrays in less time than `device_put` takes for them.
    is_apart = jax.default_backend() != "cpu"
    for batch in batches:
        like = make(batch, like)
        yield jax.device_put(like) if is_apart else like


class _Worker:
    def __init__(self, source: Iterator[Plan], prefetch: int):
        self._source = source
        self._ready: queue.Queue[Callable[[], Plan]] = queue.Queue()
        self._room = threading.Semaphore(prefetch)
        self._stopped = threading.Event()
        self._ended = False
        self._settings = _compat.trace_context()
        self._thread = threading.Thread(target=self._run, name="jitbatch-plans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if _compat.trace_context() != self._settings:
            error = PlanError(
                "f.plans was called where JAX's settings are changed for one thread (with jax.enable_x64(), "
                "jax.default_matmul_precision(...) or the like), which its own thread does not see. Change them for "
                "the whole program with jax.config.update, or plan with prefetch=0"
            )
            self._ready.put(_raise(error))
            return
        while True:
            self._room.acquire()
            if self._stopped.is_set():
                return
            try:
                plan = next(self._source)
            except BaseException as error:
                self._ready.put(_raise(error))
                return
            self._ready.put(lambda plan=plan: plan)

    def take(self) -> Plan:
        if self._ended:
            raise StopIteration
        get = self._ready.get()
        self._room.release()
        try:
            return get()
        except BaseException:
            self._ended = True
            raise

    def stop(self) -> None:
        self._stopped.set()
        self._room.release()

    def close(self) -> bool:
        """Stop, and wait for that where it can be waited for. Whether the thread has ended."""
        self.stop()
        self._ended = True
        if threading.current_thread() is self._thread:
            return False
        self._thread.join()
        return True


def _raise(error: BaseException) -> Callable[[], Plan]:
    def get() -> Plan:
        raise error

    return get
