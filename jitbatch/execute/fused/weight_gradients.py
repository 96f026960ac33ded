"""Gradients of shared operands after a loop: one contraction per weight use (see `execute/weight_uses`)."""

from typing import Any

import jax
import jax.numpy as jnp

from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.segments import gather
from jitbatch.util.compat import is_float


def contract(
    shape: LoopShape, block_id: int, arenas: Any, shared: Any, taps: Any, kept_rows: Any, tables: Any
) -> list[Any]:
    """Computes the gradients of a type's shared values, over all its nodes at once.

    Args:
        shape: the static part of the loop.
        block_id: the index of the type among the blocks of the loop.
        arenas: the arenas after the loop.
        shared: the shared values that the cell reads (`CutCell.prologue`).
        taps: the cotangents of the outputs of its weight uses.
        kept_rows: the values of `CutCell.stored_rows`.
        tables: the tables of the loop.
    """
    block, cut = shape.blocks[block_id], shape.blocks[block_id].cut
    if block.kind.is_variadic:
        return []
    total = tables["total"][block_id]
    index = tables["operands"][block_id]
    # Rows without a node repeat the row of a node, and their cotangents are zero.
    rows_of_block = jnp.arange(len(index))
    inside = jnp.clip(rows_of_block, shape.margin, shape.margin + jnp.maximum(total - 1, 0))
    is_real = (rows_of_block >= shape.margin) & (rows_of_block < shape.margin + total)
    env = dict(zip(cut.stored_rows, (gather(a, inside) for a in kept_rows), strict=True))
    remaining = iter(taps)
    gradients: list[Any] = [None] * len(cut.shared_vars)
    index_of = {var: i for i, var in enumerate(cut.shared_vars)}
    for use in cut.tapped:
        rows = []
        for var in use.rows:
            if var not in env:
                slot = cut.row_vars.index(var)
                env[var] = gather(arenas[shape.reads[block_id][slot]], index[:, slot])
            rows.append(env[var])
        outs = [i for i, var in enumerate(use.outputs) if is_float(var.aval)]
        cotangents = [next(remaining) for _ in outs]
        wanted = [var for var in use.shared if is_float(var.aval)]

        def outputs(
            values: list[Any], use: Any = use, rows: Any = rows, wanted: Any = wanted, outs: Any = outs
        ) -> list[Any]:
            value_of = dict(zip(wanted, values, strict=True))
            operands = [value_of.get(var, shared[index_of[var]]) for var in use.shared]
            results = jax.vmap(use, in_axes=(0, None, 0), axis_size=len(index))(rows, operands, is_real)
            return [results[i] for i in outs]

        _, pull = jax.vjp(outputs, [shared[index_of[var]] for var in wanted])
        for var, gradient in zip(wanted, pull(cotangents)[0], strict=True):
            gradient = jnp.where(total > 0, gradient, 0)
            before = gradients[index_of[var]]
            gradients[index_of[var]] = gradient if before is None else before + gradient
    return [
        jnp.zeros_like(value) if gradient is None and is_float(var.aval) else gradient
        for gradient, value, var in zip(gradients, shared, cut.shared_vars, strict=True)
    ]
