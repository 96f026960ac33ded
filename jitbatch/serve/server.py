"""`Server`: many callers, and one thread that batches their requests."""

import asyncio
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from jitbatch.serve.arguments import Given, ServedArguments
from jitbatch.serve.limits import Limits, how_many
from jitbatch.serve.programs import counts_up_to
from jitbatch.serve.stats import ServerStats
from jitbatch.serve.worker import Runner, Worker
from jitbatch.util.compat import is_compiling
from jitbatch.util.errors import ArgumentError


class Server:
    """Answers requests for single samples, in batches. `f.serve(...)` makes one.

    The server has a thread. Whenever the device is free, the thread takes the waiting requests, plans them as one
    batch, and runs it. All methods may be called from any thread, and from coroutines. The server closes at the end of
    `with` or `async with`, and when no reference to it remains.

    >>> import jax.numpy as jnp
    >>> from jitbatch import jitbatch
    >>> @jitbatch
    ... def total(scale, tree):
    ...     return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree
    >>> with total.serve(jnp.float32(10), max_batch_size=8) as server:
    ...     server.warm_up([(1, (2, 3)), 4])
    ...     futures = [server.submit(tree) for tree in (5, (1, 2), ((1, 2), 3))]
    ...     print([float(future.result()) for future in futures])
    [50.0, 30.0, 60.0]
    """

    def __init__(self, arguments: ServedArguments, runner: Runner, limits: Limits):
        self._arguments = arguments
        self._runner = runner
        self._worker = Worker(arguments.name, runner, limits)
        # The thread has no reference to this object. So dropping the object ends the thread, after all accepted
        # requests.
        weakref.finalize(self, self._worker.close, drain=True).atexit = False

    def submit(self, *sample: Any, **named: Any) -> "Future[Any]":
        """Requests the result of a sample.

        Args:
            sample: the mapped arguments of the function, without the shared ones. They must not be changed until the
                request is answered.
            named: mapped arguments by name.

        Returns:
            A future. Its result is the result of the plain function for the sample, with NumPy arrays as leaves. To
            remove a waiting request, cancel the future.

        Raises:
            Overloaded: `max_waiting` requests are waiting already.
            ServerClosed: the server is closed.
        """
        if is_compiling():
            raise ArgumentError("a request to a server is made inside jax.jit, where there are no values to send")
        given = Given(sample, named)
        self._arguments.check(given)
        return self._worker.submit(given)

    async def __call__(self, *sample: Any, timeout: float | None = None, **named: Any) -> Any:
        """Requests the result of a sample and waits for it, in a coroutine.

        Args:
            sample, named: as for `submit`.
            timeout: the number of seconds to wait. After that, or if the task is cancelled, a waiting request is
                removed. If it is running already, its result is dropped, and a sample that asks for values is cancelled
                at the next sync.

        Raises:
            TimeoutError: the answer did not come in time.
        """
        answer = asyncio.wrap_future(self.submit(*sample, **named))
        async with asyncio.timeout(timeout):
            return await answer

    def warm_up(self, *samples: Any, **named: Any) -> None:
        """Compiles the programs for all batches of samples like these. Such batches compile nothing later.

        Larger samples, and other kinds of samples, run as well. Only two things compile when they arrive: a new cell
        type, and a sample that is much larger than the largest of these.

        Args:
            samples, named: samples as for `.batch`, without the shared arguments. A few hundred typical samples,
                including the largest, are enough.
        """
        columns = Given(tuple(map(list, samples)), {name: list(column) for name, column in named.items()})
        requests = columns.split()
        if not requests:
            raise ArgumentError("there are no samples to warm up with")
        self._arguments.check(requests[0])
        self._runner.warm_up(columns, self._counts(requests))

    def update(self, *shared: Any, **named: Any) -> None:
        """Replaces the shared arguments, such as parameters, for all batches that begin from now on.

        Args:
            shared, named: the shared arguments, of the same structure, shapes and dtypes as before.

        Raises:
            PlanError: their structure, shapes or dtypes differ.
        """
        now = self._arguments.shared(shared, named)
        now.check_same(self._arguments.name, self._runner.shared)
        self._runner.shared = now

    def stats(self) -> ServerStats:
        """Returns the server's statistics so far."""
        counts = self._worker.counts
        p50, p99 = counts.latencies()
        done = counts.answered + counts.failed + counts.cancelled
        accepted, waiting = counts.accepted, self._worker.waiting
        return ServerStats(
            waiting=waiting,
            running=max(accepted - done - waiting, 0),
            accepted=accepted,
            answered=counts.answered,
            failed=counts.failed,
            cancelled=counts.cancelled,
            overloaded=counts.overloaded,
            batches=self._runner.batches,
            retried=self._runner.retried,
            programs=self._runner.programs,
            p50=p50,
            p99=p99,
        )

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Stops accepting requests, and waits until the thread has ended.

        Args:
            drain: whether to answer waiting requests. Otherwise they get the exception `ServerClosed`. A running batch
                is finished in both cases.
            timeout: the number of seconds for which waiting requests, and samples in flight, are answered. After that,
                they get the exception.
        """
        self._worker.close(drain)
        if timeout is not None:
            self._worker.join(timeout)
            self._worker.close(drain=False)
        self._worker.join()

    async def aclose(self, drain: bool = True, timeout: float | None = None) -> None:
        """Like `close`, in a coroutine: other tasks run meanwhile."""
        self._worker.close(drain)
        ended = asyncio.wrap_future(self._worker.ended)
        if timeout is not None:
            await asyncio.wait([ended], timeout=timeout)
            self._worker.close(drain=False)
        await asyncio.shield(ended)

    def __enter__(self) -> "Server":
        self._worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> "Server":
        self._worker.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        await self.aclose(drain=kind is None)

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<server of {self._arguments.name}: {stats.waiting} waiting, {stats.answered} answered>"

    def _counts(self, requests: Sequence[Given]) -> list[int]:
        """Returns the numbers of samples that programs are compiled for."""
        limits = self._worker.limits
        counts = counts_up_to(limits.most)
        if limits.batch_size_fn is None:
            return counts
        samples = [requests[i % len(requests)].sample for i in range(counts[-1])]
        return counts_up_to(how_many(samples, [], limits.max_batch_size, limits.batch_size_fn))
