"""What a decorated function has beyond its plans: caches, threads, and batches of no samples."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import CacheInfo, clear_caches, jitbatch

X = np.float32([1.0, 2.0])


@jitbatch
def scaled(w: float, x: Any, *, power: int = 1) -> Any:
    """Scale and raise."""
    return (w * x) ** power


# --- Caches


def test_cache_info_counts_structures_and_subgraphs() -> None:
    cell = jitbatch(lambda w, x: w * x)

    @jitbatch
    def fun(w: Any, xs: Any) -> Any:
        return sum(cell(w, x) for x in xs)

    assert fun.cache_info()["structures"] == CacheInfo(0, 0, 16384, 0)
    fun.batch(1.0, [(1.0,), (1.0, 2.0), (3.0, 4.0)])
    info = fun.cache_info()
    assert info["structures"] == CacheInfo(hits=1, misses=2, maxsize=16384, currsize=2)
    assert info["subgraphs"] == CacheInfo(hits=2, misses=1, maxsize=4096, currsize=1)
    clear_caches()
    assert fun.cache_info()["structures"] == CacheInfo(0, 0, 16384, 0)


def test_functions_share_no_context() -> None:
    one, other = jitbatch(lambda w, x: w * x), jitbatch(lambda w, x: w + x)
    assert one.batch(2.0, [3.0]).tolist() == [6.0]
    assert other.batch(2.0, [3.0]).tolist() == [5.0]


def test_a_plan_survives_cleared_caches() -> None:
    plan = scaled.plan(2.0, [1.0, 2.0])
    clear_caches()
    assert scaled.batch(2.0, plan).tolist() == [2.0, 4.0]


# --- Threads


def test_threads_batch_the_same_function_cold() -> None:
    clear_caches()
    cell = jitbatch(lambda w, x, y: jnp.tanh(w * x + y))

    @jitbatch
    def encode(w: Any, tree: Any) -> Any:
        return cell(w, *(encode(w, child) for child in tree)) if isinstance(tree, tuple) else tree

    samples = [X, (X, X), ((X, 2 * X), X), (X, (X, (3 * X, X)))]
    barrier = threading.Barrier(8)
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait()
            results.append(np.asarray(encode.batch(X, samples)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(results) == 8
    want = np.stack([encode(jnp.asarray(X), sample) for sample in samples])
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-5)
    assert encode.cache_info()["structures"].currsize == len(samples)


def test_threads_batch_while_caches_are_cleared() -> None:
    done = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                assert scaled.batch(2.0, [1.0, 2.0]).tolist() == [2.0, 4.0]
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.01):
        clear_caches()
    thread.join()
    assert errors == []


# --- Zero samples


def test_zero_samples_as_a_list() -> None:
    assert jitbatch(lambda w, x: w * x, out="list").batch(1.0, []) == []


@pytest.mark.parametrize("mapped", [[], np.zeros((0, 2), np.float32)], ids=["list", "array"])
def test_zero_samples_of_a_known_function(mapped: Any) -> None:
    fun = jitbatch(lambda w, x: {"y": w * x})
    fun.batch(1.0, [X])
    empty = fun.batch(1.0, mapped)
    assert (empty["y"].shape, empty["y"].dtype) == ((0, 2), jnp.float32)
