"""Reductions of any number of rows, many at once: sums, maxima and minima."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.ir.cell import accumulator


def gather(arena: Any, rows: Any) -> Any:
    return arena.at[rows].get(mode="promise_in_bounds")


def segment_reduce(operation: str, arena: Any, terms: Any, segments: Any, count: int) -> Any:
    """Result k is the sum ("sum"), maximum or minimum of the rows `terms` whose segment is k; segments ascend, and
    `count` is that of padding."""
    rows = gather(arena, terms)
    dtype = accumulator(rows.dtype) if operation == "sum" else rows.dtype
    reduced = _SEGMENT[operation](rows.astype(dtype), segments, num_segments=count + 1, indices_are_sorted=True)
    return reduced[:count].astype(rows.dtype)


def chunk_reduce(operation: str, arena: Any, terms: Any, first: Any, count: Any, longest: Any) -> Any:
    """Result k is the sum, maximum or minimum of the rows `terms[first[k] : first[k] + count[k]]`. One gather for each
    term of the longest reduction: inside a loop, a scatter would make XLA copy what it scatters to. Most reductions
    have two terms, which need no loop."""
    dtype = accumulator(arena.dtype) if operation == "sum" else arena.dtype
    column = (-1, *([1] * (arena.ndim - 1)))

    def term(k: Any) -> Any:
        if operation != "sum":  # a term may take part twice: shorter ones repeat their last
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
    """The totals with each term added to its row; a row that does not exist is that of a term to be left out."""
    dtype = accumulator(totals.dtype)
    return totals.astype(dtype).at[row_of_term].add(terms.astype(dtype), mode="drop").astype(totals.dtype)
