"""The loop over rounds. In a round, each type runs the nodes that are ready, in chunks of a few widths."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.execute.fused.backward import run_backward
from jitbatch.execute.fused.derivative import with_rule
from jitbatch.execute.fused.shapes import LoopShape, RoundTable, part, put
from jitbatch.execute.segments import chunk_reduce
from jitbatch.util import jaxprs


def _run(shape: LoopShape, arenas: tuple[Any, ...], shared: tuple[Any, ...], tables: dict[str, Any]) -> tuple[Any, ...]:
    """Runs the loop and returns the arenas with the rows of its nodes.

    Args:
        shape: the static part.
        arenas: all arenas, with the rows of earlier phases.
        shared: for each type, the shared values that its cell reads (`CutCell.prologue`).
        tables: the dynamic part.
    """
    return _forward(shape, arenas, shared, tables, save=False)[0]


def _forward(shape: LoopShape, arenas: Any, shared: Any, tables: dict[str, Any], save: bool) -> tuple[Any, Any]:
    saved = tuple(
        tuple(jnp.zeros((shape.room(block), *aval.shape), aval.dtype) for aval in block.cut.saved_avals) if save else ()
        for block in shape.blocks
    )

    def chunk(block_id: int, width: int, start: Any, carry: Any) -> Any:
        arenas, saved = list(carry[0]), list(carry[1])
        block = shape.blocks[block_id]
        operation = block.kind.operation
        if operation is not None:
            (read,), (write,) = shape.reads[block_id], shape.writes[block_id]
            table = tables["operands"][block_id]
            first_term, count = part(table["first"], start, width), part(table["count"], start, width)
            longest = block.longest if shape.is_static else jnp.max(count)
            terms = without_flow(arenas[read], *block.flows)
            value = chunk_reduce(operation, terms, table["terms"], first_term, count, longest)
            arenas[write] = put(arenas[write], value, block.starts[0] + start)
            return tuple(arenas), tuple(saved)
        rows = shape.operands(block_id, arenas, tables, start, width)
        axes = (0, None)
        outputs, kept = jax.vmap(block.cut.forward, in_axes=axes, axis_size=width)(rows, shared[block_id])
        for arena, begin, value in zip(shape.writes[block_id], block.starts, outputs, strict=True):
            arenas[arena] = put(arenas[arena], value, begin + start)
        if save:
            saved[block_id] = tuple(put(a, value, start) for a, value in zip(saved[block_id], kept, strict=True))
        return tuple(arenas), tuple(saved)

    def round_body(r: Any, carry: Any) -> Any:
        ends = RoundTable(tables["ends"], r, shape.target.hoists_trips)
        for block_id in range(len(shape.blocks)):
            with shape.blocks[block_id].kind.cell.scope():
                carry = shape.over_chunks(block_id, ends, functools.partial(chunk, block_id), carry)
        return carry

    saved = jaxprs.cast(saved, jaxprs.axes_of(tables))
    arenas, saved = lax.fori_loop(0, shape.round_count(tables), round_body, (tuple(arenas), saved))
    # The last chunks have written surplus rows behind the nodes; they are set to zero.
    return arenas, tuple(
        tuple(put(a, jnp.zeros_like(a[: shape.margin]), shape.margin + tables["total"][block_id]) for a in buffers)
        for block_id, buffers in enumerate(saved)
    )


def _forward_saving(shape: LoopShape, arenas: Any, shared: Any, tables: dict[str, Any]) -> tuple[Any, Any]:
    return _forward(shape, arenas, shared, tables, save=True)


def _again(arenas: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    # The arenas hold the rows of the loop already. Running the loop on them again gives the same rows.
    return arenas, *args[1:]


run_loop = with_rule(_run, _forward_saving, _again, run_backward)
"""`_run` with derivatives in both modes."""
