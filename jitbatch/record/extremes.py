"""Maxima and minima of any number of floats, with a derivative: trees of one cell with two operands."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from jitbatch.ir.cell import Cell, intern_cell
from jitbatch.record.values import ConstantRow, Op, Value, new_value
from jitbatch.util.caches import memoised


def has_extremes(dtype: Any) -> bool:
    """Whether arrays of a dtype can be reduced pairwise."""
    return jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


def reduce_pairs(terms: Sequence[Any], reduction: Any, op: Op, made: list[Op]) -> Value:
    """Reduce terms pairwise. Each term has a count of how often it has been the extreme so far: equal terms share a
    gradient equally."""
    aval = jax.typeof(terms[0])
    cell = _extreme_cell(reduction is primitives.reduce_max_p, tuple(aval.shape), np.dtype(aval.dtype))
    once = new_value(op, cell.in_avals[1])
    once.source = ConstantRow(np.ones(aval.shape, np.float32))
    level: list[tuple[Any, Any]] = [(term, once) for term in terms]
    if len(level) == 1:  # with itself, so that types do not depend on the number of terms
        level *= 2
    while len(level) > 1:
        pairs = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            pair = Op([*left, *right], op.scope, op.at)
            pair.cell = cell
            pair.outputs = [new_value(op, out) for out in cell.out_avals]
            for value in pair.outputs:
                value.source = pair
            made.append(pair)
            pairs.append((pair.outputs[0], pair.outputs[1]))
        level = [*pairs, *level[2 * len(pairs) :]]
    return level[0][0]


@memoised(256)
def _extreme_cell(largest: bool, shape: tuple[int, ...], dtype: Any) -> Cell:
    pick, before = (lax.max, lax.gt) if largest else (lax.min, lax.lt)
    exact = jnp.promote_types(dtype, np.float32)

    # Terms are compared with each other, never with the result: XLA may compute a term twice, with different last bits.
    def extreme(a: Any, times_a: Any, b: Any, times_b: Any) -> tuple[Any, Any]:
        # Counts are never negative. But JAX requires a value to vary among rows if its tangent does (jax issue 16374).
        value = jnp.where(times_a < 0, a, pick(a, b))
        ties = jnp.where(a == b, times_a + times_b, np.nan)
        return value, jnp.where(before(a, b), times_a, jnp.where(before(b, a), times_b, ties))

    differentiable = jax.custom_jvp(extreme)

    @differentiable.defjvp
    def extreme_jvp(primals: Any, tangents: Any) -> Any:
        a, times_a, b, times_b = primals
        shared = jnp.where(a == b, times_a.astype(exact) / (times_a + times_b), np.nan)
        share_a = jnp.where(before(a, b), 1, jnp.where(before(b, a), 0, shared)).astype(dtype)
        value, times = differentiable(*primals)
        return (value, times), (share_a * tangents[0] + (1 - share_a) * tangents[2], jnp.zeros_like(times))

    value, times = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape, np.float32)
    closed = jax.make_jaxpr(differentiable)(value, times, value, times)
    return intern_cell(closed, "maximum" if largest else "minimum", "")
