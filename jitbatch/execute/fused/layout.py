"""The layout of a fused program's tables in one buffer of integers."""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.batch.analysis import SharedRows, shared_positions
from jitbatch.batch.types import Types
from jitbatch.core import choice
from jitbatch.core.layout import NONE, ArenaLayout, ArenaTables, BlockLayout, LoopLayout, PhaseLayout
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.shapes import Block, LoopShape
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
        self._type_of = {kind: type_id for type_id, kind in enumerate(types.kinds)}
        # The first `_build` finds the tables. The second one uses their offsets, which are those of `pack`.
        self._shapes: list[tuple[int, ...]] = []
        self._offsets: list[int] = []
        _, tables = self._build()
        table_ids, treedef = jax.tree.flatten(tables)
        shapes = [self._shapes[table_id] for table_id in table_ids]
        ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
        self.size = ends[-1]
        self._layout = Layout(treedef, tuple(shapes))
        self._offsets = [0] * len(table_ids)
        for table_id, offset in zip(table_ids, ends, strict=False):
            self._offsets[table_id] = offset
        self._shapes = []
        phases, _ = self._build()
        own_arenas = [
            ArenaLayout(arena.value_class, len(arena.shared), arena.inputs, arena.capacity) for arena in arenas
        ]
        self.core = types.table.layout(phases, own_arenas, self.size)
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
            (jnp.zeros if one.is_key else np.empty, (arena.inputs, *one.shape) if arena.inputs else None, one.dtype)
            for arena, one in zip(self.arenas, classes, strict=True)
        ]

    def _build(self) -> tuple[list[PhaseLayout], tuple[Any, ...]]:
        """Returns the phases as input of `core`, and for each phase the indices of its tables."""
        built = [
            self._add_single(phase) if isinstance(phase, SingleShape) else self._add_loop(phase)
            for phase in self.program.phases
        ]
        return [layout for layout, _ in built], tuple(tables for _, tables in built)

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

    def _add(self, *shape: int) -> tuple[int, int]:
        """Adds a table and returns its index and its offset."""
        table_id = len(self._shapes)
        self._shapes.append(shape)
        return table_id, self._offsets[table_id] if self._offsets else 0

    def _add_single(self, shape: SingleShape) -> tuple[PhaseLayout, Any]:
        block = shape.block
        if block.kind.is_variadic:
            names = {"terms": (block.terms,), "segments": (block.terms,)}
        else:
            names = {"operands": (block.kind.rows, block.capacity)}
        added = {name: self._add(*sizes) for name, sizes in names.items()}
        total, total_table = self._add()
        block_layout = self._block(block, shape.reads, shape.writes, (), [offset for _, offset in added.values()])
        return PhaseLayout((block_layout,), total_table, None), {
            **{n: table_id for n, (table_id, _) in added.items()},
            "total": total,
        }

    def _add_loop(self, shape: LoopShape) -> tuple[PhaseLayout, Any]:
        types = len(shape.blocks)
        widths = max((block.widths for block in shape.blocks), key=len)
        rounds, rounds_table = self._add()
        ends, ends_table = self._add(shape.rounds, types, 1 + len(widths))
        total, total_table = self._add(types)
        blocks, operands = [], []
        for block, reads, writes, edges in zip(shape.blocks, shape.reads, shape.writes, shape.edges, strict=True):
            room = block.capacity + 2 * shape.margin
            if block.kind.is_variadic:
                added = {"terms": self._add(block.terms), "first": self._add(room), "count": self._add(room)}
                operands.append({name: table_id for name, (table_id, _) in added.items()})
                offsets = [offset for _, offset in added.values()]
            else:
                table_id, offset = self._add(room, block.kind.rows)
                operands.append(table_id)
                offsets = [offset]
            # A chunk reduces at least two terms (see `chunk_reduce`).
            longest = max(block.longest, 2) if shape.is_static and block.kind.is_variadic else 0
            blocks.append(self._block(block, reads, writes, edges, offsets, longest, shape.target.launch))
        arenas = [self._arena(shape, arena) for arena in range(len(shape.edge_rows))]
        loop = LoopLayout(
            margin=shape.margin,
            rounds=shape.rounds,
            most=widths[-1] if shape.is_static else most_nodes(shape.target, widths[-1]),
            pair_trips=shape.pair_trips or (),
            widths=widths,
            edge_rows=shape.edge_rows,
            pair_rows=shape.pair_rows,
            rounds_table=rounds_table,
            ends_table=ends_table,
            arenas=tuple(offsets for offsets, _ in arenas),
        )
        tables: dict[str, Any] = {"rounds": rounds, "ends": ends, "total": total, "operands": tuple(operands)}
        for name in ("edge_of_row", "row_of_edge", "row_of_term", "pair_left", "pair_right", "pair_start", "pair_span"):
            tables[name] = tuple(arena_ids.get(name) for _, arena_ids in arenas)
        return PhaseLayout(tuple(blocks), total_table, loop), tables

    def _block(
        self, block: Block, reads: Sequence[int], writes: Sequence[int], edges: Sequence[int], offsets: Sequence[int],
        longest: int = 0, launch: int = 0,
    ) -> BlockLayout:  # fmt: skip
        chunks = [many for counts in best_chunks(block.widths, launch) for many in counts] if block.widths else []
        return BlockLayout(
            type=self._type_of[block.kind],
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

    def _arena(self, shape: LoopShape, arena: int) -> tuple[ArenaTables, dict[str, Any]]:
        """Returns the offsets and the indices of the tables for the cotangent rows of one arena."""
        if not shape.edge_rows[arena]:
            return ArenaTables(), {}
        edges, pairs = shape.edge_rows[arena], shape.pair_rows[arena]
        sizes: dict[str, tuple[int, ...]] = {
            "edge_of_row": (self.arenas[arena].capacity,),
            "row_of_edge": (edges + pairs,),
        }
        terms = sum(
            block.terms
            for block, reads, begins in zip(shape.blocks, shape.reads, shape.edges, strict=True)
            if block.kind.is_variadic and reads[0] == arena and begins[0] != NONE
        )
        if terms:
            sizes |= {"edge_of_term": (terms,), "row_of_term": (terms,)}
        if pairs:
            sizes |= dict.fromkeys(("pair_left", "pair_right", "pair_start"), (pairs,))
            sizes["pair_span"] = (shape.rounds, len(shape.blocks), 2)
        added = {name: self._add(*size) for name, size in sizes.items()}
        table_ids: dict[str, Any] = {name: table_id for name, (table_id, _) in added.items()}
        if terms:
            table_ids["row_of_term"] = table_ids.pop("edge_of_term"), table_ids["row_of_term"]
        return ArenaTables(**{name: offset for name, (_, offset) in added.items()}), table_ids
