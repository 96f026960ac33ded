"""Planning ahead of time: a thread plans the next minibatches while the device runs the current one."""

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
from jitbatch.util.threads import stop_at_exit

T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """An iterator whose items are made ahead of time. `f.plans(...)` and `step.prefetch(...)` return it.

    To stop early, call `close()` or use it as a context manager. If the source raises an exception, `next` raises it in
    place of the item.

    Args:
        source: the iterator that makes the items.
        ahead: the number of items to make ahead of time, in a thread. With 0 there is no thread, and `next` makes the
            item. None means 2, and 0 on a CPU.
    """

    def __init__(self, source: Iterator[T], ahead: int | None):
        if ahead is None:
            ahead = default_ahead()
        if ahead < 0:
            raise ArgumentError(f"prefetch={ahead} is negative: it is how many plans are made ahead of time")
        self._source = source
        self._worker = None if ahead == 0 else _Worker(self._source, ahead)
        if self._worker is not None:  # the thread has no reference to this object, so dropping it stops the thread
            weakref.finalize(self, self._worker.stop)

    def __next__(self) -> T:
        return next(self._source) if self._worker is None else self._worker.take()

    def close(self) -> None:
        """Stops making items, waits for the thread to end, and closes the source if it is a generator."""
        if (self._worker is None or self._worker.close()) and isinstance(self._source, Generator):
            self._source.close()

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def default_ahead() -> int:
    """Returns how many items are made ahead of time by default: 2, and 0 on a CPU."""
    return 0 if jax.default_backend() == "cpu" else 2


def plans_of(make: Callable[[Any, Any], Plan], batches: Iterable[Any], like: Any) -> Iterator[Plan]:
    """Yields the plans of minibatches. Unless `like` is `"auto"`, each plan is made `like` the one before."""
    for batch in batches:
        plan = make(batch, like)
        if like != "auto":
            like = plan
        yield plan


def on_device(items: Iterable[T]) -> Iterator[T]:
    """Yields items with their arrays on the device. On a CPU, items stay as they are: NumPy arrays are faster there."""
    is_apart = jax.default_backend() != "cpu"
    for item in items:
        yield jax.tree.map(_put, item, is_leaf=_is_put_whole) if is_apart else item


def _put(part: Any) -> Any:
    return part.on_device() if _is_put_whole(part) else jax.device_put(part)


def _is_put_whole(part: Any) -> bool:
    """Whether an object is a plan, or contains one. A plan moves as a whole, because some of its parts stay on the
    host."""
    return hasattr(type(part), "on_device")


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
        stop_at_exit(self)
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

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout)

    def close(self) -> bool:
        """Stops the thread and waits for it, unless called from it. Returns whether the thread has ended."""
        self.stop()
        self._ended = True
        if threading.current_thread() is self._thread:
            return False
        self.join()
        return True


def _raise(error: BaseException) -> Callable[[], Any]:
    def get() -> Any:
        raise error

    return get
