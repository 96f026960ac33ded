"""The tables of a fused program: the shapes of the integer arrays that a plan fills in for each phase.

The tables are a pytree: a tuple of dicts, one for each phase. `execute/fused/program` and the loops read it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.core.layout import NONE
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.program import ArenaShape

COTANGENT_TABLES = (
    "edge_of_row", "row_of_edge", "edge_of_term", "row_of_term", "pair_left", "pair_right", "pair_start", "pair_span",
)  # fmt: skip
"""The tables of a loop for one arena (see `core/layout.ArenaTables`)."""


def table_shapes(program: FusedProgram, arenas: Sequence[ArenaShape]) -> tuple[dict[str, Any], ...]:
    """Returns the tables of each phase, as `jax.ShapeDtypeStruct`s."""
    return tuple(
        _single_tables(phase) if isinstance(phase, SingleShape) else _loop_tables(phase, arenas)
        for phase in program.phases
    )


def chunk_widths(shape: LoopShape) -> tuple[int, ...]:
    """Returns the possible widths of chunks in a loop, ascending."""
    return max((block.widths for block in shape.blocks), key=len)


def _table(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def _single_tables(shape: SingleShape) -> dict[str, Any]:
    block = shape.block
    if block.kind.is_variadic:
        return {"terms": _table(block.terms), "segments": _table(block.terms), "total": _table()}
    return {"operands": _table(block.kind.rows, block.capacity), "total": _table()}


def _loop_tables(shape: LoopShape, arenas: Sequence[ArenaShape]) -> dict[str, Any]:
    operands = []
    for block in shape.blocks:
        room = block.capacity + 2 * shape.margin
        if block.kind.is_variadic:
            operands.append({"terms": _table(block.terms), "first": _table(room), "count": _table(room)})
        else:
            operands.append(_table(room, block.kind.rows))
    types = len(shape.blocks)
    of_arenas = [_cotangent_tables(shape, index, arenas[index].capacity) for index in range(len(shape.edge_rows))]
    by_name = {name: tuple(tables.get(name) for tables in of_arenas) for name in COTANGENT_TABLES}
    by_name["row_of_term"] = tuple(
        None if edge is None else (edge, row)
        for edge, row in zip(by_name.pop("edge_of_term"), by_name["row_of_term"], strict=True)
    )
    return {
        "rounds": _table(),
        "ends": _table(shape.rounds, types, 1 + len(chunk_widths(shape))),
        "total": _table(types),
        "operands": tuple(operands),
        **by_name,
    }


def _cotangent_tables(shape: LoopShape, arena: int, capacity: int) -> dict[str, Any]:
    """Returns the tables for the cotangent rows of one arena, by the names of `COTANGENT_TABLES`."""
    edges, pairs = shape.edge_rows[arena], shape.pair_rows[arena]
    if not edges:
        return {}
    tables = {"edge_of_row": _table(capacity), "row_of_edge": _table(edges + pairs)}
    terms = sum(
        block.terms
        for block, reads, begins in zip(shape.blocks, shape.reads, shape.edges, strict=True)
        if block.kind.is_variadic and reads[0] == arena and begins[0] != NONE
    )
    if terms:
        tables |= {"edge_of_term": _table(terms), "row_of_term": _table(terms)}
    if pairs:
        tables |= {name: _table(pairs) for name in ("pair_left", "pair_right", "pair_start")}
        tables["pair_span"] = _table(shape.rounds, len(shape.blocks), 2)
    return tables
