"""Sums of any number of rows, for many sums at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.ir.cell import accumulator


def gather(arena: Any, rows: Any) -> Any:
    return arena.at[rows].get(mode="promise_in_bounds")


def segment_sums(arena: Any, terms: Any, segments: Any, sums: int) -> Any:
    """Sum k is that of the rows `terms` whose segment is k; segments ascend, and `sums` is that of padding."""
    rows = gather(arena, terms)
    total = jax.ops.segment_sum(
        rows.astype(accumulator(rows.dtype)), segments, num_segments=sums + 1, indices_are_sorted=True
    )
    return total[:sums].astype(rows.dtype)


def chunk_sums(arena: Any, terms: Any, first: Any, count: Any, longest: Any) -> Any:
    """Sum k is that of the rows `terms[first[k] : first[k] + count[k]]`. One gather for each term of the longest sum:
    inside a loop, a scatter would make XLA copy what it scatters to. Most sums have two terms, which need no loop."""
    dtype = accumulator(arena.dtype)
    column = (-1, *([1] * (arena.ndim - 1)))

    def term(k: Any) -> Any:
        rows = gather(arena, terms[jnp.minimum(first + k, len(terms) - 1)])
        return jnp.where((k < count).reshape(column), rows.astype(dtype), 0)

    return lax.fori_loop(2, longest, lambda k, total: total + term(k), term(0) + term(1)).astype(arena.dtype)


def scatter_sums(totals: Any, terms: Any, row_of_term: Any) -> Any:
    """The totals with each term added to its row; a row that does not exist is that of a term to be left out."""
    dtype = accumulator(totals.dtype)
    return totals.astype(dtype).at[row_of_term].add(terms.astype(dtype), mode="drop").astype(totals.dtype)
