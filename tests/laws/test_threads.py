"""Many threads at once: right results, and each program compiled once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, counted_compilations, named

from jitbatch import clear_caches, jitbatch

THREADS = 16
WORKLOAD = named("binary_tree")
PARAMS, SAMPLES = WORKLOAD.draw()
WANT = WORKLOAD.loop(PARAMS, SAMPLES)


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """What `work(number)` returns in each thread; they start together, and the first error is raised."""
    results: list[Any] = [None] * THREADS
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            start.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def compilations(run: Callable[[], Any]) -> int:
    clear_caches()
    jax.clear_caches()
    with counted_compilations() as made:
        run()
    return len(made)


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_one_function_in_all_threads(executor: Any) -> None:
    w, samples = jnp.float32(0.5), [(1.0,), (2.0, 3.0)]

    def total(w: Any, xs: Any) -> Any:
        return sum(jnp.tanh(w * x) for x in xs)

    fun = jitbatch(total, executor=executor)

    def run(_: int = 0) -> Any:
        return fun.batch(w, samples)

    alone = compilations(run)
    results: list[Any] = []
    assert compilations(lambda: results.extend(in_threads(run))) == alone
    with counted_compilations() as made:
        results += in_threads(run)
    assert not made
    for result in results:
        assert_same(result, jnp.stack([total(w, xs) for xs in samples]))


def test_a_function_for_each_thread() -> None:
    def work(number: int) -> Any:
        fun = jitbatch(lambda w, x: jnp.tanh(w * x) + number)
        return fun.batch(jnp.float32(2), [1.0, 2.0, float(number)])

    for number, result in enumerate(in_threads(work)):
        assert_same(result, jnp.tanh(jnp.float32(2) * jnp.float32([1.0, 2.0, number])) + number)


def test_different_samples_of_one_function() -> None:
    """Threads add structures to the same tables at the same time."""
    fun = jitbatch(lambda w, xs: sum(jnp.tanh(w * x) for x in xs))
    w = jnp.float32(0.5)

    def work(number: int) -> Any:
        samples = [tuple(float(i) for i in range(1 + (number + k) % 5)) for k in range(4)]
        return samples, fun.batch(w, samples), fun.plan(w, samples).summary.types

    for samples, result, types in in_threads(work):
        assert_same(result, jnp.stack([sum(jnp.tanh(w * x) for x in xs) for xs in samples]))
        assert types == 2


def test_caches_are_cleared_meanwhile() -> None:
    fun = jitbatch(WORKLOAD.fun)
    done = threading.Event()

    def clear() -> None:
        while not done.wait(0.01):
            clear_caches()

    def work(number: int) -> list[Any]:
        made = []
        for turn in range(2):
            samples = SAMPLES if (number + turn) % 2 else SAMPLES[::-1]
            made.append((samples, fun.plan(PARAMS, samples), fun.batch(PARAMS, samples)))
        return made

    clearing = threading.Thread(target=clear)
    clearing.start()
    try:
        results = in_threads(work)
    finally:
        done.set()
        clearing.join()
    for samples, plan, result in (one for each in results for one in each):
        want = WANT if samples is SAMPLES else WANT[::-1]
        assert_same(result, want)
        assert plan.summary.samples == len(samples)
    assert_same(fun.batch(PARAMS, results[0][0][1]), WANT if results[0][0][0] is SAMPLES else WANT[::-1])
    assert np.isfinite(np.asarray(fun.batch(PARAMS, SAMPLES))).all()
