"""Planning ahead: the next minibatches are planned while the device runs the last one."""

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

import jax

from jitbatch.plan.plan import Plan
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError, PlanError

T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """The items of an iterator, made ahead of time. Made by `f.plans(...)` and by `step.prefetch(...)`.

    Iterate over it; `close()` it, or use it as a context manager, to stop early. An exception of the iterator is raised
    in the place of the item that could not be made.

    Args:
        source: the iterator.
        ahead: how many items are made ahead of time, in a thread; with 0, each is made when it is asked for. By default
            2, but 0 where the device is a CPU.
    """

    def __init__(self, source: Iterator[T], ahead: int | None):
        if ahead is None:
            ahead = 0 if jax.default_backend() == "cpu" else 2
        if ahead < 0:
            raise ArgumentError(f"prefetch={ahead} is negative: it is how many plans are made ahead of time")
        self._source = source
        self._worker = None if ahead == 0 else _Worker(self._source, ahead)
        if self._worker is not None:  # its thread does not hold on to this object: one that is dropped is closed
            weakref.finalize(self, self._worker.stop)

    def __next__(self) -> T:
        return next(self._source) if self._worker is None else self._worker.take()

    def close(self) -> None:
        """Make no further items, wait until the thread has ended, and close the iterator if it is a generator."""
        if (self._worker is None or self._worker.close()) and isinstance(self._source, Generator):
            self._source.close()

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def plans_of(make: Callable[[Any, Any], Plan], batches: Iterable[Any], like: Any) -> Iterator[Plan]:
    """Plans of minibatches in turn, each made like the one before unless sizes look after themselves."""
    for batch in batches:
        plan = make(batch, like)
        if like != "auto":
            like = plan
        yield plan


def on_device(items: Iterable[T]) -> Iterator[T]:
    """Items, with their arrays put on the device where it has memory of its own. On a CPU, a program takes arrays of
    NumPy in less time than `device_put` does."""
    is_apart = jax.default_backend() != "cpu"
    for item in items:
        yield jax.device_put(item) if is_apart else item


class _Worker(Generic[T]):
    def __init__(self, source: Iterator[T], prefetch: int):
        self._source = source
        self._ready: queue.Queue[Callable[[], T]] = queue.Queue()
        self._room = threading.Semaphore(prefetch)
        self._stopped = threading.Event()
        self._ended = False
        self._settings = compat.trace_context()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="jitbatch-plans", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        if compat.trace_context() != self._settings:
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
                item = next(self._source)
            except BaseException as error:
                self._ready.put(_raise(error))
                return
            self._ready.put(lambda item=item: item)

    def take(self) -> T:
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


def _raise(error: BaseException) -> Callable[[], Any]:
    def get() -> Any:
        raise error

    return get
