"""Reductions of any number of rows: both ways of computing them give what each gives by itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch.execute.segments import chunk_reduce, scatter_sums, segment_reduce

COUNTS = ([1], [3, 1, 4], [2, 2, 2, 2, 2], [1, 9, 1])


def problem(counts: list[int], dtype: Any, shape: tuple[int, ...] = (2,), seed: int = 0) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    arena = jnp.asarray(rng.integers(-50, 50, size=(6, *shape)), dtype)
    return arena, rng.integers(6, size=sum(counts))


def by_segments(arena: Any, terms: np.ndarray, counts: list[int], padding: int = 0, operation: str = "sum") -> Any:
    segments = np.append(np.repeat(np.arange(len(counts)), counts), np.full(padding, len(counts)))
    return segment_reduce(operation, arena, np.append(terms, np.zeros(padding, int)), segments, len(counts))


def by_chunks(arena: Any, terms: np.ndarray, counts: list[int], padding: int = 0, operation: str = "sum") -> Any:
    first = np.append(np.cumsum(counts) - counts, np.zeros(padding, int))
    count = np.append(counts, np.zeros(padding, int))
    return chunk_reduce(operation, arena, jnp.asarray(terms), jnp.asarray(first), jnp.asarray(count), max(counts))[
        : len(counts)
    ]


WAYS = [by_segments, by_chunks]


def one_by_one(arena: Any, terms: np.ndarray, counts: list[int], operation: str = "sum") -> np.ndarray:
    parts = np.split(np.asarray(arena)[terms], np.cumsum(counts)[:-1])
    if operation != "sum":
        return np.stack([getattr(part, operation)(0) for part in parts])
    return np.stack([part.sum(0, dtype=arena.dtype) for part in parts])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("operation", ["sum", "max", "min"])
def test_reductions_are_those_one_by_one(way: Any, counts: list[int], operation: str) -> None:
    for dtype, shape in ((np.float32, (2,)), (np.int32, ()), (np.uint8, (2, 1))):
        arena, terms = problem(counts, dtype, shape)
        got = way(arena, terms, counts, operation=operation)
        assert got.dtype == arena.dtype
        np.testing.assert_array_equal(got, one_by_one(arena, terms, counts, operation))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operation", ["sum", "max", "min"])
def test_padding_takes_no_part(way: Any, operation: str) -> None:
    arena, terms = problem([3, 1, 4], np.float32)
    arena = arena.at[0].set(np.nan)  # padding reads row 0
    terms = np.maximum(terms, 1)
    got = way(arena, terms, [3, 1, 4], padding=5, operation=operation)
    np.testing.assert_array_equal(got, one_by_one(arena, terms, [3, 1, 4], operation))


@pytest.mark.parametrize("way", WAYS)
def test_maxima_of_infinities_and_of_what_is_not_a_number(way: Any) -> None:
    arena = jnp.float32([-np.inf, 1, np.inf, np.nan])
    got = way(arena, np.array([0, 0, 0, 1, 1, 2, 1, 3]), [2, 2, 2, 2], operation="max")
    np.testing.assert_array_equal(got, [-np.inf, 1, np.inf, np.nan])


@pytest.mark.parametrize("way", WAYS)
def test_a_row_may_be_a_term_many_times(way: Any) -> None:
    arena, _ = problem([3, 2], np.float32)
    got = way(arena, np.array([4, 4, 4, 4, 1]), [3, 2])
    np.testing.assert_array_equal(got, [3 * arena[4], arena[4] + arena[1]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_floats_are_accumulated_in_float32(way: Any, dtype: Any) -> None:
    arena = jnp.ones((1, 2), dtype)  # one by one, bfloat16 stops at 256 and float16 at 2048
    got = way(arena, np.zeros(4096, int), [4095, 1])
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(np.float32), [[4096, 4096], [1, 1]])


def test_the_gradient_of_a_term_is_that_of_its_sum() -> None:
    counts = [3, 1, 4]
    arena, terms = problem(counts, np.float32)
    weights = jnp.arange(6.0).reshape(3, 2)
    got = jax.grad(lambda arena: (by_segments(arena, terms, counts, padding=2) * weights).sum())(arena)
    want = np.zeros((6, 2), np.float32)
    np.add.at(want, terms, np.repeat(weights, counts, axis=0))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_scattered_terms_are_added_to_their_rows(dtype: Any) -> None:
    rows = np.array([0, 2, 2, 5, 0, 2])  # there is no row 5
    terms = jnp.arange(12, dtype=dtype).reshape(6, 2)
    got = scatter_sums(jnp.ones((3, 2), dtype), terms, rows)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(np.float32), [[9, 11], [1, 1], [17, 20]])


def test_many_short_floats_are_summed_as_long_ones() -> None:
    terms = jnp.ones((1000, 1), jnp.bfloat16)
    assert scatter_sums(jnp.zeros((1, 1), jnp.bfloat16), terms, np.zeros(1000, int))[0, 0] == 1000
