"""Faults, races and ends: nothing that was accepted is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Overloaded, Server, ServerClosed, jitbatch
from jitbatch.serve.arguments import Given
from jitbatch.serve.limits import Limits, how_many
from jitbatch.serve.requests import Answer, Request
from jitbatch.serve.worker import Worker

SECONDS = 60
"""How long a test waits for what has to happen."""


class Runner:
    """Doubles numbers when it is let; a stand-in for the device."""

    def __init__(self) -> None:
        self.shared: Any = None
        self.batches = self.retried = self.programs = 0
        self.sizes: list[int] = []
        self.held: list[Request] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.began = threading.Event()
        self.fault: BaseException | None = None

    @property
    def is_open(self) -> bool:
        return not self.held

    def admit(self, requests: Sequence[Request]) -> list[Answer]:
        self.held += requests
        return []

    def advance(self) -> list[Answer]:
        self.began.set()
        assert self.may_run.wait(SECONDS)
        if self.fault is not None:
            raise self.fault
        self.batches += 1
        self.sizes.append(len(self.held))
        held, self.held = self.held, []
        return [Answer(request, 2 * request.given.args[0]) for request in held]

    def drop(self) -> list[Request]:
        held, self.held = self.held, []
        return held

    def warm_up(self, columns: Given, counts: Sequence[int]) -> None: ...


def worker_of(**limits: Any) -> tuple[Worker, Runner]:
    runner = Runner()
    return Worker("`f`", runner, Limits(**limits)), runner


def ask(worker: Worker, number: float) -> Future[Any]:
    return worker.submit(Given((number,)))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "jitbatch-server":
            thread.join(SECONDS)
            assert not thread.is_alive()


def test_whoever_waits_runs_together() -> None:
    worker, runner = worker_of(max_batch_size=4)
    runner.may_run.clear()
    futures = [ask(worker, 0)]
    assert runner.began.wait(SECONDS)
    futures += [ask(worker, i) for i in range(1, 7)]
    runner.may_run.set()
    assert [future.result(SECONDS) for future in futures] == [0, 2, 4, 6, 8, 10, 12]
    assert runner.sizes == [1, 4, 2]
    worker.close(drain=True)


def test_a_delay_gathers_requests() -> None:
    worker, runner = worker_of(max_batch_size=3, max_delay=SECONDS)
    futures = [ask(worker, i) for i in range(5)]
    assert [future.result(SECONDS) for future in futures[:3]] == [0, 2, 4]
    worker.close(drain=True)  # what is left does not wait any longer
    assert [future.result(SECONDS) for future in futures[3:]] == [6, 8]
    assert runner.sizes == [3, 2]


def test_a_short_delay_ends() -> None:
    worker, runner = worker_of(max_delay=0.01)
    assert ask(worker, 1).result(SECONDS) == 2
    worker.close(drain=True)
    assert runner.sizes == [1]


def test_sizes_by_a_function() -> None:
    assert [how_many([3, 1, 2, 5], [], most, sum) for most in (1, 3, 4, 6, 100)] == [1, 1, 2, 3, 4]
    assert [how_many([3, 1], [4], most, sum) for most in (5, 7, 8)] == [0, 1, 2]
    worker, runner = worker_of(max_batch_size=10, batch_size_fn=sum, max_delay=SECONDS)
    futures = [ask(worker, i) for i in (4, 5, 6, 40, 1)]
    assert [future.result(SECONDS) for future in futures[:4]] == [8, 10, 12, 80]
    worker.close(drain=True)
    worker.join(SECONDS)
    assert runner.sizes == [2, 1, 1, 1]


def test_a_size_function_that_fails_harms_nobody_else() -> None:
    def size(numbers: list[Any]) -> int:
        if 3 in numbers:
            raise ValueError("no size")
        return len(numbers)

    worker, runner = worker_of(batch_size_fn=size)
    runner.may_run.clear()
    futures = [ask(worker, i) for i in range(6)]
    runner.may_run.set()
    assert [future.result(SECONDS) for future in futures] == [0, 2, 4, 6, 8, 10]
    worker.close(drain=True)


def test_too_many_are_refused_at_once() -> None:
    worker, runner = worker_of(max_waiting=2)
    runner.may_run.clear()
    futures = [ask(worker, 0)]
    assert runner.began.wait(SECONDS)
    futures += [ask(worker, 1), ask(worker, 2)]
    with pytest.raises(Overloaded, match="2 requests wait for `f` already"):
        ask(worker, 3)
    assert futures[1].cancel()
    futures.append(ask(worker, 4))  # a cancelled request leaves its place
    runner.may_run.set()
    assert [future.result(SECONDS) for future in (futures[0], *futures[2:])] == [0, 4, 8]
    assert (worker.counts.overloaded, worker.counts.cancelled, worker.counts.accepted) == (1, 1, 4)
    worker.close(drain=True)


def test_a_request_that_runs_is_not_cancelled() -> None:
    worker, runner = worker_of()
    runner.may_run.clear()
    future = ask(worker, 1)
    assert runner.began.wait(SECONDS)
    assert not future.cancel()
    runner.may_run.set()
    assert future.result(SECONDS) == 2
    worker.close(drain=True)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_answers_or_refuses_those_who_wait(drain: bool) -> None:
    worker, runner = worker_of(max_batch_size=1)
    runner.may_run.clear()
    futures = [ask(worker, i) for i in range(5)]
    assert runner.began.wait(SECONDS)
    worker.close(drain)
    with pytest.raises(ServerClosed, match="the server of `f` is closed"):
        ask(worker, 5)
    runner.may_run.set()
    worker.ended.result(SECONDS)
    assert futures[0].result(SECONDS) == 0  # was running
    for number, future in enumerate(futures[1:], 1):
        if drain:
            assert future.result(0) == 2 * number
        else:
            with pytest.raises(ServerClosed):
                future.result(0)
    worker.close(drain)


def test_a_drain_can_be_cut_short() -> None:
    worker, runner = worker_of(max_batch_size=1)
    runner.may_run.clear()
    futures = [ask(worker, i) for i in range(5)]
    assert runner.began.wait(SECONDS)
    worker.close(drain=True)
    worker.close(drain=False)
    runner.may_run.set()
    worker.ended.result(SECONDS)
    assert futures[0].result(0) == 0
    assert all(isinstance(future.exception(0), ServerClosed) for future in futures[1:])


@pytest.mark.parametrize("fault", [RuntimeError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_a_thread_that_fails_leaves_nobody_waiting(fault: BaseException) -> None:
    worker, runner = worker_of(max_batch_size=2)
    runner.may_run.clear()
    futures = [ask(worker, i) for i in range(5)]
    runner.fault = fault
    runner.may_run.set()
    for future in futures:
        error = future.exception(SECONDS)
        assert isinstance(error, ServerClosed)
        assert type(fault).__name__ in str(error)
        assert error.__cause__ is fault
    worker.ended.result(SECONDS)
    with pytest.raises(ServerClosed, match="the server of `f` has failed"):
        ask(worker, 1)


@pytest.mark.parametrize("fault", [ValueError("of a callback"), SystemExit(3)])
def test_callbacks_that_fail_harm_nobody(fault: BaseException) -> None:
    worker, runner = worker_of()

    def fail(_: Future[Any]) -> None:
        raise fault

    runner.may_run.clear()
    first = ask(worker, 1)
    first.add_done_callback(fail)
    runner.may_run.set()
    assert first.result(SECONDS) == 2
    assert ask(worker, 2).result(SECONDS) == 4
    worker.close(drain=True)


def test_callbacks_may_ask_and_close() -> None:
    worker, runner = worker_of()
    runner.may_run.clear()
    more: list[Future[Any]] = []
    first = ask(worker, 1)

    def callback(_: Future[Any]) -> None:
        more.append(ask(worker, 2))
        worker.close(drain=True)
        worker.join()  # in the thread itself: it does not wait for itself

    first.add_done_callback(callback)
    runner.may_run.set()
    worker.ended.result(SECONDS)
    assert more[0].result(0) == 4


def test_an_answer_that_somebody_else_gave() -> None:
    worker, runner = worker_of()
    runner.may_run.clear()
    first = ask(worker, 1)
    assert runner.began.wait(SECONDS)
    first.set_result("mine")
    runner.may_run.set()
    assert ask(worker, 2).result(SECONDS) == 4
    assert first.result() == "mine"
    worker.close(drain=True)


# With a device


@jitbatch
def double(scale: Any, x: Any) -> Any:
    return scale * x


SCALE = jnp.float32(2)


def test_a_timed_out_request_is_taken_out_of_the_line() -> None:
    async def main() -> None:
        async with double.serve(SCALE, max_delay=SECONDS) as server:
            with pytest.raises(TimeoutError):
                await server(1.0, timeout=0.01)
            task = asyncio.ensure_future(server(2.0))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (server.stats().waiting, server.stats().cancelled, server.stats().running) == (0, 2, 0)

    asyncio.run(main())


def test_an_error_inside_of_with_refuses_those_who_wait() -> None:
    server = double.serve(SCALE, max_delay=SECONDS)
    future = server.submit(1.0)
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    with pytest.raises(ServerClosed):
        future.result(SECONDS)


def test_out_of_memory_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitbatch.serve import whole

    real, sizes = whole.execute, []

    def execute(plan: Any, leaves: Any) -> Any:
        sizes.append(plan.summary.samples)
        if sizes[-1] > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
        return real(plan, leaves)

    with double.serve(SCALE, max_delay=SECONDS, max_batch_size=4) as server:
        monkeypatch.setattr(whole, "execute", execute)
        futures = [server.submit(float(i)) for i in range(4)]
        assert [float(future.result(SECONDS)) for future in futures] == [0.0, 2.0, 4.0, 6.0]
        assert sizes == [4, 1, 1, 1, 1]
        assert server.stats().retried == 1


def test_a_server_that_nobody_has_answers_and_ends() -> None:
    server = double.serve(SCALE, max_batch_size=1)
    futures = [server.submit(float(i)) for i in range(20)]
    gone = weakref.ref(server)
    ended = server._worker.ended
    del server
    gc.collect()
    assert gone() is None
    assert [float(future.result(SECONDS)) for future in futures] == [2.0 * i for i in range(20)]
    ended.result(SECONDS)


def test_many_threads_and_coroutines_at_once() -> None:
    """Requests, cancellations, timeouts, updates and a shutdown, all at the same time: every request has an end."""
    server = double.serve(SCALE, max_batch_size=16, max_waiting=64)
    server.warm_up([float(i) for i in range(16)])
    outcomes: list[tuple[int, int]] = []

    def note(kinds: Sequence[int]) -> None:
        outcomes.append((len(kinds), sum(kinds)))

    def in_threads(seed: int) -> None:
        rng, kinds = np.random.default_rng(seed), []
        for _ in range(150):
            x = float(rng.integers(100))
            try:
                future = server.submit(x)
            except (Overloaded, ServerClosed):
                kinds.append(0)
                continue
            if rng.random() < 0.2:
                future.cancel()
            try:
                assert float(future.result(SECONDS)) in (2 * x, 3 * x)
                kinds.append(1)
            except (CancelledError, ServerClosed):
                kinds.append(0)
        note(kinds)

    async def in_coroutines(seed: int) -> None:
        rng = np.random.default_rng(seed)

        async def one(x: float, timeout: float) -> int:
            try:
                assert float(await server(x, timeout=timeout)) in (2 * x, 3 * x)
            except (TimeoutError, Overloaded, ServerClosed):
                return 0
            return 1

        for _ in range(10):
            kinds = await asyncio.gather(
                *[one(float(rng.integers(100)), rng.choice([1e-4, 1e-2, SECONDS])) for _ in range(15)]
            )
            note(kinds)

    def updates() -> None:
        for turn in range(20):
            server.update(jnp.float32(2 + turn % 2))
            time.sleep(0.002)

    with ThreadPoolExecutor(16) as pool:
        tasks = [pool.submit(in_threads, seed) for seed in range(10)]
        tasks += [pool.submit(asyncio.run, in_coroutines(seed)) for seed in range(4)]
        tasks += [pool.submit(updates)]
        wait(tasks[-1:], SECONDS)
        time.sleep(0.2)
        server.close(drain=False)
        for task in tasks:
            task.result(SECONDS)
    stats = server.stats()
    assert stats.accepted == stats.answered + stats.failed + stats.cancelled
    assert (stats.waiting, stats.running) == (0, 0)
    assert sum(good for _, good in outcomes) > 0


LEFT_OPEN = """
import threading
import jax.numpy as jnp
from jitbatch import jitbatch

cell = jitbatch(lambda w, x, y: jnp.tanh(w * x + y))
chain = jitbatch(lambda w, xs: sum(cell(w, x, 1.0) for x in xs))
server = chain.serve(jnp.float32(2), max_waiting=100_000)
print(server.submit((1.0, 2.0)).result().shape)
for i in range(3000):
    server.submit(tuple(map(float, range(1 + i % 40))))
"""

FORKED = """
import os, sys, threading, warnings
import jax.numpy as jnp
from jitbatch import ServerClosed, jitbatch
from jitbatch.util import threads

double = jitbatch(lambda w, x: w * x)
server = double.serve(jnp.float32(2), max_waiting=100_000)
server.submit(1.0).result()
stop = threading.Event()

def ask():
    while not stop.is_set():
        server.submit(1.0).result()

asking = [threading.Thread(target=ask) for _ in range(4)]
for thread in asking:
    thread.start()
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    try:
        server.submit(1.0)
    except ServerClosed as error:
        print("child:", "made in another process" in str(error), flush=True)
    server.close()
    del server
    threads._stop_all()  # what runs at exit. JAX itself cannot end a forked process
    os._exit(0)
print("parent:", os.waitpid(child, 0)[1], flush=True)
stop.set()
for thread in asking:
    thread.join()
print(float(server.submit(3.0).result()))
"""


@pytest.mark.parametrize(("script", "printed"), [(LEFT_OPEN, "()\n"), (FORKED, "child: True\nparent: 0\n6.0\n")])
def test_processes_end_cleanly(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


# Many requests


@pytest.mark.parametrize("number", [600, pytest.param(100_000, marks=pytest.mark.slow)])
def test_requests_of_random_structures(number: int) -> None:
    """Nothing is lost, and what is left behind does not grow with the number of requests."""
    rng = np.random.default_rng(0)

    @jitbatch
    def total(scale: Any, tree: Any) -> Any:
        return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return float(rng.integers(1, 9))
        left = int(rng.integers(1, leaves))
        return tree(left), tree(leaves - left)

    def sum_of(one: Any) -> float:
        return sum(map(sum_of, one)) if isinstance(one, tuple) else one

    server: Server = total.serve(SCALE, max_waiting=number)
    server.warm_up([tree(1 + i % 12) for i in range(200)])
    counts = []
    for _ in range(10):
        trees = [tree(int(rng.integers(1, 13))) for _ in range(number // 10)]
        futures = [server.submit(one) for one in trees]
        for one, future in zip(trees, futures, strict=True):
            assert float(future.result(SECONDS)) == 2 * sum_of(one)
        del trees, futures, one, future
        gc.collect()
        counts.append(sum(isinstance(thing, Request | Future | Answer) for thing in gc.get_objects()))
    assert server.stats().answered == number
    server.close()
    assert max(counts) <= counts[0], counts
