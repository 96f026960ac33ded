"""Segment reductions of rows: sums, maxima and minima."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.ir.cell import accumulator


def gather(arena: Any, rows: Any) -> Any:
    return arena.at[rows].get(mode="promise_in_bounds")


def gather_each(arena: Any, indices: list[Any]) -> list[Any]:
    """Gathers rows for several indices of equal length, with one gather."""
    if len(indices) < 2:
        return [gather(arena, rows) for rows in indices]
    rows, count = gather(arena, jnp.concatenate(indices)), len(indices[0])
    return [lax.slice_in_dim(rows, part_id * count, (part_id + 1) * count) for part_id in range(len(indices))]


def segment_reduce(operation: str, arena: Any, terms: Any, segments: Any, count: int) -> Any:
    """Reduces rows by segment. Result k is the reduction of the terms with segment k.

    Args:
        operation: `"sum"`, `"max"` or `"min"`.
        arena: the arena of the terms.
        terms: the row of each term.
        segments: the segment of each term, in ascending order. Padding has the segment `count`.
        count: the number of results.
    """
    rows = gather(arena, terms)
    dtype = accumulator(rows.dtype) if operation == "sum" else rows.dtype
    reduced = _SEGMENT[operation](rows.astype(dtype), segments, num_segments=count + 1, indices_are_sorted=True)
    return reduced[:count].astype(rows.dtype)


def chunk_reduce(operation: str, arena: Any, terms: Any, first: Any, count: Any, longest: Any) -> Any:
    """Reduces consecutive terms. Result k is the reduction of the rows `terms[first[k] : first[k] + count[k]]`.

    It gathers once for each term of the longest reduction. A scatter inside a loop would make XLA copy its target. The
    first two terms need no loop; most reductions have two.

    Args:
        operation: `"sum"`, `"max"` or `"min"`.
        arena: the arena of the terms.
        terms: the rows of all terms.
        first, count: the first term and the number of terms of each result.
        longest: the largest number of terms.
    """
    dtype = accumulator(arena.dtype) if operation == "sum" else arena.dtype
    column = (-1, *([1] * (arena.ndim - 1)))

    def term(k: Any) -> Any:
        if operation != "sum":  # repeated terms do not change the result: shorter reductions repeat their last term
            return gather(arena, terms[first + jnp.minimum(k, jnp.maximum(count - 1, 0))])
        rows = gather(arena, terms[jnp.minimum(first + k, len(terms) - 1)])
        return jnp.where((k < count).reshape(column), rows.astype(dtype), 0)

    combine = _COMBINE[operation]
    return lax.fori_loop(2, longest, lambda k, total: combine(total, term(k)), combine(term(0), term(1))).astype(
        arena.dtype
    )


_SEGMENT = {"sum": jax.ops.segment_sum, "max": jax.ops.segment_max, "min": jax.ops.segment_min}
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"sum": lax.add, "max": lax.max, "min": lax.min}


def scatter_sums(totals: Any, terms: Any, row_of_term: Any) -> Any:
    """Adds each term to its row of `totals`. Terms with a row out of bounds are dropped."""
    dtype = accumulator(totals.dtype)
    return totals.astype(dtype).at[row_of_term].add(terms.astype(dtype), mode="drop").astype(totals.dtype)
