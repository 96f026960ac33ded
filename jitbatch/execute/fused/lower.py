"""From an analysed batch to a fused program: rows for what nodes make, and the tables of each phase (see
`execute/fused/program`)."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.batch.types import Origin
from jitbatch.execute.executor import ArenaShape, Lowered
from jitbatch.execute.fused.cotangent_rows import Edges
from jitbatch.execute.fused.loop import Block, LoopShape
from jitbatch.execute.fused.pair_sums import stable_order
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.widths import chunks_of, overshoot, widths_for
from jitbatch.execute.sizes import LoopSizes, Sizes, size_of
from jitbatch.schedule.policies import Policy
from jitbatch.schedule.rounds import rounds_of, rounds_of_layers
from jitbatch.util import passes
from jitbatch.util.compat import is_float
from jitbatch.util.errors import VerifyError
from jitbatch.util.headroom import headroom
from jitbatch.util.rounding import round_up

PAIRS_HEADROOM = 2.0
"""Headroom for sums of pairs of gradients: their number varies more than that of nodes, with how many calls are equal,
and room for more of them costs memory alone."""


def lower(
    analysis: Analysis, policy: Policy, sizes: Sizes | None = None, static_loops: bool = False,
    headroom_for: int = 0,
) -> Lowered:  # fmt: skip
    """Phases, with tables for this batch and room for at least `sizes`; and, if asked for, for other batches of so many
    samples (see `util/headroom`)."""
    return Lowering(analysis, policy, sizes or Sizes(), static_loops, headroom_for).lower()


class Single(NamedTuple):
    """A phase that is not a loop, whose nodes have rows: its type, its block, and its nodes."""

    type: int
    block: Block
    nodes: np.ndarray


class Loop(NamedTuple):
    """A loop whose nodes have rows: its types, and for each type its block, its nodes in the order of execution, their
    rounds, and where it comes from; how many rows chunks may write too much; and the widths that chunks can have."""

    types: tuple[int, ...]
    blocks: list[Block]
    nodes: list[np.ndarray]
    rounds: list[np.ndarray]
    origins: list[Origin]
    margin: int
    widths: tuple[int, ...]


class Lowering:
    """Makes the phases and tables of a batch."""

    def __init__(
        self, analysis: Analysis, policy: Policy, least: Sizes, static_loops: bool, headroom_for: int
    ):  # fmt: skip
        self.analysis = analysis
        self.tables = analysis.tables
        self.types = types = analysis.types
        self.flows = analysis.flows
        self.policy = policy
        self.least = least
        self.static_loops = static_loops
        self.value_row = analysis.value_row.copy()
        self.steps = self.launches = self.padded_rows = self.bound = 0
        self.nodes: dict[Origin, int] = {}
        self.terms: dict[Origin, int] = {}
        self.loops: dict[frozenset[Origin], LoopSizes] = {}
        self.type = analysis.batch.type[analysis.nodes]
        self.round = self._rounds()
        # The distinct nodes in the order in which the rows of their types lie, and where those of a type end.
        rounds = int(self.round.max(initial=0)) + 1
        self.order = stable_order(self.type * rounds + self.round, len(types.kinds) * rounds)
        self.ends = np.cumsum(np.bincount(self.type, minlength=len(types.kinds))).tolist()

        self.headroom_for = headroom_for
        self.headroom, self.headroom_of_all = np.ones(len(types.kinds)), 1.0
        if headroom_for:
            by_type = [np.bincount(piece.nodes[0], minlength=len(types.kinds)) for piece in analysis.pieces]
            self.headroom = headroom(np.array(by_type), headroom_for)
            nodes = np.array([piece.sizes[0] for piece in analysis.pieces])
            self.headroom_of_all = float(headroom(nodes, headroom_for))
        counts = analysis.packed.counts.tolist()
        self.inputs = {c: _size(n, least.inputs.get(c, 0), self.headroom_of_all) for c, n in enumerate(counts)}
        self.next_row = [len(analysis.shared_rows[c]) + self.inputs[c] for c in self.inputs]
        used = {c for c, rows in enumerate(self.next_row) if rows}
        self.arena_classes = sorted(used.union(*types.writes), key=self.tables.class_order)
        self.arena_of = {c: place for place, c in enumerate(self.arena_classes)}

    def _rounds(self) -> np.ndarray:
        """The round of each distinct node that runs in a loop."""
        analysis, types = self.analysis, self.types
        layer = analysis.batch.layer[analysis.nodes]
        rounds = np.zeros(len(layer), np.int64)
        layers = np.concatenate([piece.layers for piece in analysis.pieces])
        counts, least = layers[::2].max(axis=0), layers[1::2].max(axis=0)
        self.bound = int(least.sum())
        loops = [members for members, is_loop in types.phases if is_loop]
        needs = np.zeros((4, 0), np.int64)
        if self.policy.by_ranks and any(len(members) > 1 for members in loops):
            needs = np.concatenate([piece.needs for piece in analysis.pieces], axis=1)
        for members in loops:
            place = np.full(len(types.kinds), -1)
            place[list(members)] = np.arange(len(members))
            here = np.flatnonzero(place[self.type] >= 0)
            type_here = place[self.type[here]]
            table = None
            if self.policy.by_ranks:
                own = needs[:, place[needs[0]] >= 0]
                own[[0, 2]] = place[own[[0, 2]]]
                table = rounds_of_layers(counts[list(members)].tolist(), own)
            if table is not None:
                rounds[here] = table[type_here, layer[here]]
            # Sums of one term have a place among the layers, which may be one more than there has to be.
            taken = None if table is None else _steps(rounds[here], type_here)
            if taken is None or self.policy.searches(taken, int(least[list(members)].sum())):
                others = rounds_of(analysis.problem, here, members, self.policy)
                if taken is None or _steps(others, type_here) < taken:
                    rounds[here] = others
            if passes.verifies():
                self._verify_rounds(rounds, place)
        return rounds

    def _verify_rounds(self, rounds: np.ndarray, place: np.ndarray) -> None:
        """Check that a node of a loop runs after what it reads in the loop; `place` is that of types in a round. And
        that what structures say of the least number of steps is what the nodes say."""
        problem = self.analysis.problem
        if problem.layer is not None and problem.bound != self.bound:
            raise VerifyError("rounds: the lower bound is that of the nodes")
        inside = (place[problem.type[problem.reader]] >= 0) & (place[problem.type[problem.read]] >= 0)
        when = rounds * len(place) + place[problem.type]
        if np.any(when[problem.reader[inside]] <= when[problem.read[inside]]):
            raise VerifyError("rounds: a node of a loop runs after what it reads")

    def lower(self) -> Lowered:
        placed = [
            self._place_loop(types) if is_loop else self._place_single(types[0]) for types, is_loop in self.types.phases
        ]
        self.analysis.place_merged(self.value_row)
        lowered = [self._lower_loop(one) if isinstance(one, Loop) else self._lower_single(one) for one in placed]
        shapes, tables = zip(*lowered, strict=True) if lowered else ((), ())
        arenas = tuple(
            ArenaShape(c, self.analysis.shared_rows[c], self.inputs[c], max(self.next_row[c], 1))
            for c in self.arena_classes
        )
        sizes = Sizes(
            profile=self.types.profile,
            exemplars=self.types.exemplars,
            nodes=self.nodes,
            terms=self.terms,
            inputs=self.inputs,
            shared=frozenset(number for rows in self.analysis.shared_rows for number in rows),
            loops=self.loops,
        )
        program = FusedProgram(tuple(shapes), sizes)
        return Lowered(
            program, tuple(tables), arenas, self.value_row, self.steps, self.bound, self.launches, self.padded_rows
        )

    # Rows for what nodes make

    def _ordered(self, number: int) -> np.ndarray:
        """The distinct nodes of a type, as numbers among the distinct nodes."""
        return self.order[self.ends[number - 1] if number else 0 : self.ends[number]]

    def _place_single(self, number: int) -> Single:
        nodes = self.analysis.nodes[self._ordered(number)]
        block = self._block(number, nodes)
        self.steps += len(nodes) > 0
        self.launches += len(nodes) > 0
        self.padded_rows += block.capacity
        self.analysis.place(self.value_row, nodes, block.starts)
        return Single(number, block, nodes)

    def _block(self, number: int, nodes: np.ndarray, margin: int = 0, widths: tuple[int, ...] = ()) -> Block:
        kind, origin = self.types.kinds[number], self.types.origins[number]
        # There is room for a node even where all sums are of one term, which are no nodes.
        more = self.headroom[number]
        capacity = self.nodes[origin] = _size(max(len(nodes), 1), size_of(self.least.nodes, origin), more)
        terms = 0
        if kind.is_variadic:
            count = int(self.analysis.batch.arity[nodes].sum())
            terms = self.terms[origin] = _size(max(count, 1), size_of(self.least.terms, origin), more)
        starts_of_outputs = []
        for out_class in self.types.writes[number]:
            starts_of_outputs.append(self.next_row[out_class])
            self.next_row[out_class] += capacity + 2 * margin
        fitting = tuple(width for width in widths if width <= capacity + 2 * margin)
        return Block(kind, capacity, tuple(starts_of_outputs), self.flows[number], fitting, terms)

    def _place_loop(self, types: tuple[int, ...]) -> Loop:
        ordered = [self.analysis.nodes[self._ordered(t)] for t in types]
        rounds_by_type = [self.round[self._ordered(t)] for t in types]
        largest = max(
            _enlarged(int(np.bincount(rounds).max(initial=1)), self.headroom[t])
            for t, rounds in zip(types, rounds_by_type, strict=True)
        )
        blocks = []
        origins = [self.types.origins[t] for t in types]
        least = self.least.of_loop(origins)
        if self.static_loops:
            margin = widest = max(round_up(largest), least.width)
            widths: tuple[int, ...] = (widest,)
        else:
            widths = widths_for(largest, least.width)
            margin = overshoot(widths)
        for t, nodes in zip(types, ordered, strict=True):
            block = self._block(t, nodes, margin, widths)
            if self.static_loops and block.kind.is_variadic:
                longest = int(self.analysis.batch.arity[nodes].max(initial=0))
                block = replace(block, longest=_size(longest, least.longest, self.headroom_of_all))
            self.analysis.place(self.value_row, nodes, [start + margin for start in block.starts])
            blocks.append(block)
        return Loop(types, blocks, ordered, rounds_by_type, origins, margin, widths)

    # Tables

    def _arenas(self, classes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.arena_of[one] for one in classes)

    def _lower_single(self, single: Single) -> tuple[SingleShape, dict[str, Any]]:
        number, block, nodes = single
        shape = SingleShape(block, self._arenas(self.types.reads[number]), self._arenas(self.types.writes[number]))
        total = np.array(len(nodes), np.int32)
        if block.kind.is_variadic:
            terms, counts = self.analysis.terms(nodes, self.value_row)
            segments = np.arange(len(nodes)).repeat(counts)
            return shape, {
                "terms": _filled(terms, block.terms, 0),
                "segments": _filled(segments, block.terms, block.capacity),
                "total": total,
            }
        rows = self.analysis.operand_rows(nodes, self.value_row, block.kind.rows)
        return shape, {"operands": _extended(rows, 0, block.capacity), "total": total}

    def _lower_loop(self, loop: Loop) -> tuple[LoopShape, dict[str, Any]]:
        types, blocks, ordered, rounds, origins, margin, widths = loop
        rounds_count = max(int(r.max(initial=-1)) for r in rounds) + 1
        least = self.least.of_loop(origins)
        room = max(self._room_for_rounds(rounds_count), least.rounds)
        counts = np.array([np.bincount(r, minlength=room) for r in rounds]).T
        chunks = np.zeros((*counts.shape, len(widths)), np.int32)
        for t, block in enumerate(blocks):
            chunks[:, t, : len(block.widths)] = chunks_of(counts[:, t], block.widths)
        if self.static_loops:
            chunks[:] = 1
        self.steps += int(np.count_nonzero(counts))
        self.launches += int(chunks.sum())
        first = margin + counts.cumsum(axis=0) - counts
        rows_of_chunks = chunks[..., ::-1] * np.array(widths[::-1])
        self.padded_rows += int(rows_of_chunks.sum())

        edges = Edges(len(self.arena_classes), margin)
        due = [np.full(max(self.next_row[c], 1), -1, np.int64) for c in self.arena_classes]
        operand_tables: list[Any] = []
        begins: list[tuple[int, ...]] = []
        reads = [self._arenas(self.types.reads[t]) for t in types]
        writes = [self._arenas(self.types.writes[t]) for t in types]
        for place, (block, nodes) in enumerate(zip(blocks, ordered, strict=True)):
            table, begin = self._operands(block, nodes, reads[place], edges)
            operand_tables.append(table)
            begins.append(begin)
            # When a cotangent is due: in the transposed order of rounds and types.
            when = (rounds_count - 1 - rounds[place]) * len(types) + (len(types) - 1 - place)
            for arena, start in zip(writes[place], block.starts, strict=True):
                due[arena][start + margin : start + margin + len(nodes)] = when

        def room_for_pairs(arena: int, pairs: int) -> int:
            # There may be few, and then their number varies much: a sixteenth of the edge rows is no cost.
            enough = max(pairs, edges.counts[arena] // 16) if pairs else 0
            more = max(self.headroom_of_all, PAIRS_HEADROOM) if self.headroom_for else 1.0
            return _size(enough, least.pairs.get(self.arena_classes[arena], 0), more)

        edge_tables = edges.tables(due, (rounds_count, len(types)), room, room_for_pairs)
        pair_trips = None
        if self.static_loops:
            by_class = zip(edge_tables, self.arena_classes, strict=True)
            more = self.headroom_of_all
            pair_trips = tuple(_size(one.longest, least.pair_trips.get(c, 0), more) for one, c in by_class)
        pair_rows = tuple(one.pair_rows for one in edge_tables)
        self.loops[frozenset(origins)] = LoopSizes(
            rounds=room,
            width=widths[-1],
            pairs=dict(zip(self.arena_classes, pair_rows, strict=True)),
            pair_trips={} if pair_trips is None else dict(zip(self.arena_classes, pair_trips, strict=True)),
            longest=max(block.longest for block in blocks),
        )
        shape = LoopShape(
            blocks=tuple(blocks),
            margin=margin,
            rounds=room,
            reads=tuple(reads),
            writes=tuple(writes),
            edges=tuple(begins),
            edge_rows=edges.counts,
            pair_rows=pair_rows,
            pair_trips=pair_trips,
        )
        tables: dict[str, Any] = {
            "rounds": np.array(rounds_count, np.int32),
            "ends": np.concatenate([first[..., None], rows_of_chunks], axis=-1).cumsum(axis=-1, dtype=np.int32),
            "total": counts.sum(axis=0, dtype=np.int32),
            "operands": tuple(operand_tables),
            "edge_of_row": tuple(one.edge_of_row for one in edge_tables),
            "row_of_edge": tuple(one.row_of_edge for one in edge_tables),
            "row_of_term": tuple(one.row_of_term for one in edge_tables),
        }
        for name in ("pair_left", "pair_right", "pair_start", "pair_span"):
            tables[name] = tuple(None if one.pairs is None else one.pairs[name] for one in edge_tables)
        return shape, tables

    def _room_for_rounds(self, rounds: int) -> int:
        """Rounded far up, to 64, 256, 1024, ..., where those that are not there cost only rows of small tables."""
        if self.static_loops:
            return round_up(_enlarged(rounds, self.headroom_of_all))
        room = 64
        while room < rounds:
            room *= 4
        return room

    def _operands(
        self, block: Block, nodes: np.ndarray, reads: tuple[int, ...], edges: Edges
    ) -> tuple[Any, tuple[int, ...]]:
        """The table of the operands of a type in a loop, and where the edge rows of each begin."""
        margin = edges.margin
        avals = block.kind.row_avals
        if not block.kind.is_variadic:
            rows = self.analysis.operand_rows(nodes, self.value_row, block.kind.rows)
            table = np.ascontiguousarray(_extended(rows, margin, 2 * margin + block.capacity).T)
            return table, tuple(
                edges.add_operand(arena, row, block.capacity) if is_float(aval) and flows else -1
                for arena, row, aval, flows in zip(reads, rows, avals, block.flows, strict=True)
            )
        terms, arity = self.analysis.terms(nodes, self.value_row)
        room = 2 * margin + block.capacity
        table = {
            "terms": _filled(terms, block.terms, 0),
            "first": _filled(arity.cumsum() - arity, room, 0, margin),
            "count": _filled(arity, room, 0, margin),
        }
        has_edges = is_float(avals[0]) and block.flows[0]
        return table, (edges.add_sum(reads[0], terms, arity, block.capacity, block.terms) if has_edges else -1,)


def _steps(rounds: np.ndarray, types: np.ndarray) -> int:
    """How many steps nodes take that run in some rounds: one for each type in each."""
    return int(np.count_nonzero(np.bincount(rounds * (int(types.max(initial=0)) + 1) + types)))


def _size(count: int, least: int, headroom: float = 1.0) -> int:
    return max(round_up(_enlarged(count, headroom)) if count else 0, least)


def _enlarged(count: int, headroom: float) -> int:
    return math.ceil(count * headroom)


def _filled(numbers: np.ndarray, length: int, value: int, before: int = 0) -> np.ndarray:
    """Numbers with a value before and after them, up to a length."""
    filled = np.full(length, value, np.int32)
    filled[before : before + len(numbers)] = numbers
    return filled


def _extended(rows: np.ndarray, before: int, length: int) -> np.ndarray:
    """Columns before the first that repeat it, and after the last that repeat it, up to a length; zeros for none."""
    slots, count = rows.shape
    if not count:
        return np.zeros((slots, length), np.int32)
    extended = np.empty((slots, length), np.int32)
    extended[:, before : before + count] = rows
    extended[:, :before] = rows[:, :1]
    extended[:, before + count :] = rows[:, -1:]
    return extended
