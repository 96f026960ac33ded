"""The layout of a fused program's tables in one buffer of integers."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.batch.analysis import SharedRows, shared_positions
from jitbatch.batch.types import Types
from jitbatch.core import choice
from jitbatch.core.layout import ArenaLayout, ArenaTables, BlockLayout, LoopLayout, PhaseLayout
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.shapes import Block, LoopShape
from jitbatch.execute.fused.tables import COTANGENT_TABLES, chunk_widths, table_shapes
from jitbatch.execute.fused.widths import best_chunks, most_nodes
from jitbatch.execute.program import ArenaShape
from jitbatch.util.packed import Layout, Packed

if TYPE_CHECKING:
    from jitbatch.core.native import Refill


class TableLayout:
    """The offsets of a program's tables in their buffer.

    Attributes:
        core: the sizes and offsets, as input of `core`.
        size: the number of elements of all tables.
        differentiable: the value classes with differentiated inputs.
    """

    def __init__(
        self, types: Types, program: FusedProgram, arenas: Sequence[ArenaShape], differentiable: Sequence[int] = ()
    ):
        self.types, self.program, self.arenas = types, program, tuple(arenas)
        self.differentiable = tuple(differentiable)
        shapes = table_shapes(program, self.arenas)
        leaves, treedef = jax.tree.flatten(shapes)
        *begins, self.size = itertools.accumulate([math.prod(leaf.shape) for leaf in leaves], initial=0)
        self._layout = Layout(treedef, tuple(leaf.shape for leaf in leaves))
        offsets = treedef.unflatten(begins)
        arena_layouts = [
            ArenaLayout(arena.value_class, len(arena.shared), arena.inputs, arena.capacity) for arena in arenas
        ]
        self.core = types.table.layout(core_phases(types, program, offsets), arena_layouts, self.size)
        self._tables = types.exemplars[0].tables
        self._positions: SharedRows | None = None
        self._refill: tuple[SharedRows, Refill] | None = None
        self._flows = {block.kind: block.flows for block in program.blocks}

    def has_flows(self, classes: Collection[int]) -> bool:
        """Whether the program is for derivatives of inputs of just these value classes."""
        flows = self.types.flows_from(classes) if classes else self.types.flows
        return all(self._flows[kind] == block_flows for kind, block_flows in zip(self.types.kinds, flows, strict=True))

    @cached_property
    def is_for_constants(self) -> bool:
        """Whether the program is for inputs without derivatives."""
        return self.has_flows(())

    def refill(self) -> "Refill":
        """Returns the data for the compiled core to plan known samples for the program."""
        positions = self.shared_positions(len(self._tables.classes))
        found = self._refill
        if found is None or found[0] is not positions:
            assert choice.native is not None
            formats = self._tables.class_formats()[: len(positions.counts)]
            found = self._refill = positions, choice.native.Refill(self.core, formats, *positions)
        return found[1]

    def input_rows(self) -> list[Any]:
        """Returns for each arena an array for its input rows, None if it has none. Keys are zeros."""
        return [None if shape is None else make(shape, dtype) for make, shape, dtype in self._input_shapes]

    @cached_property
    def _input_shapes(self) -> list[tuple[Callable[..., Any], tuple[int, ...] | None, Any]]:
        """For each arena a function that makes its input rows, and their shape and dtype; None if it has none."""
        classes = [self._tables.classes[arena.value_class] for arena in self.arenas]
        return [
            (jnp.zeros if c.is_key else np.empty, (arena.inputs, *c.shape) if arena.inputs else None, c.dtype)
            for arena, c in zip(self.arenas, classes, strict=True)
        ]

    def tables(self, buffer: np.ndarray) -> Packed:
        """Returns the tables of a plan from a buffer, int32 [size], that `core` has filled."""
        return Packed(buffer, self._layout)

    def shared_positions(self, classes: int) -> SharedRows:
        """Returns the rows of the shared values in the arenas. `classes` is the number of value classes."""
        tables, found = self._tables, self._positions
        if found is None or len(found.row) < len(tables.shared_class) or len(found.counts) != classes:
            rows = {arena.value_class: arena.shared for arena in self.arenas}
            found = self._positions = shared_positions(rows, tables, classes)
        return found


def core_phases(types: Types, program: FusedProgram, offsets: Sequence[Any]) -> list[PhaseLayout]:
    """Returns the phases of a program as input of `core`.

    Args:
        types: the types of the batch.
        program: the program.
        offsets: the offsets of its tables, in the form of `table_shapes`.
    """
    type_of = {kind: type_id for type_id, kind in enumerate(types.kinds)}
    return [
        _single_phase(phase, type_of[phase.block.kind], tables)
        if isinstance(phase, SingleShape)
        else _loop_phase(phase, [type_of[block.kind] for block in phase.blocks], tables)
        for phase, tables in zip(program.phases, offsets, strict=True)
    ]


def _single_phase(shape: SingleShape, type_id: int, tables: Mapping[str, Any]) -> PhaseLayout:
    names = ("terms", "segments") if shape.block.kind.is_variadic else ("operands",)
    offsets = [tables[name] for name in names]
    return PhaseLayout((_block(shape.block, type_id, shape.reads, shape.writes, (), offsets),), tables["total"], None)


def _loop_phase(shape: LoopShape, type_ids: Sequence[int], tables: Mapping[str, Any]) -> PhaseLayout:
    blocks = []
    for block, type_id, reads, writes, edges, operands in zip(
        shape.blocks, type_ids, shape.reads, shape.writes, shape.edges, tables["operands"], strict=True
    ):
        is_variadic = block.kind.is_variadic
        offsets = [operands[name] for name in ("terms", "first", "count")] if is_variadic else [operands]
        # A chunk reduces at least two terms (see `chunk_reduce`).
        longest = max(block.longest, 2) if shape.is_static and is_variadic else 0
        blocks.append(_block(block, type_id, reads, writes, edges, offsets, longest, shape.target.launch))
    widths = chunk_widths(shape)
    loop = LoopLayout(
        margin=shape.margin,
        rounds=shape.rounds,
        most=widths[-1] if shape.is_static else most_nodes(shape.target, widths[-1]),
        pair_trips=shape.pair_trips or (),
        widths=widths,
        edge_rows=shape.edge_rows,
        pair_rows=shape.pair_rows,
        rounds_table=tables["rounds"],
        ends_table=tables["ends"],
        arenas=tuple(_arena_tables(tables, arena) for arena in range(len(shape.edge_rows))),
    )
    return PhaseLayout(tuple(blocks), tables["total"], loop)


def _block(
    block: Block, type_id: int, reads: Sequence[int], writes: Sequence[int], edges: Sequence[int],
    offsets: Sequence[int], longest: int = 0, launch: int = 0,
) -> BlockLayout:  # fmt: skip
    chunks = [many for counts in best_chunks(block.widths, launch) for many in counts] if block.widths else []
    return BlockLayout(
        type=type_id,
        capacity=block.capacity,
        terms=block.terms,
        longest=longest,
        starts=block.starts,
        reads=tuple(reads),
        writes=tuple(writes),
        edges=tuple(edges),
        widths=block.widths,
        chunks=tuple(chunks),
        tables=tuple(offsets),
    )


def _arena_tables(tables: Mapping[str, Any], arena: int) -> ArenaTables:
    """Returns the offsets of a loop's tables for one arena."""
    offsets = {name: tables[name][arena] for name in COTANGENT_TABLES if name in tables}
    if offsets["row_of_term"] is not None:
        offsets["edge_of_term"], offsets["row_of_term"] = offsets["row_of_term"]
    return ArenaTables(**{name: offset for name, offset in offsets.items() if offset is not None})
