"""The sizes of a fused program: room for its batch, for the least sizes, and headroom."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.batch.types import Origin
from jitbatch.core.layout import NONE, PAIR_WIDTH
from jitbatch.core.reference.schedule import Schedule
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.shapes import Block, LoopShape
from jitbatch.execute.fused.targets import Target
from jitbatch.execute.fused.widths import overshoot, widths_for
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.sizes import LoopSizes, Sizes, size_of
from jitbatch.util.compat import is_float
from jitbatch.util.headroom import headroom
from jitbatch.util.rounding import round_up

PAIRS_HEADROOM = 2.0
"""The headroom for pair sums of cotangent rows. Their number varies more than the number of nodes, since it depends on
the number of equal calls. More room for them costs only memory."""


def size_program(
    analysis: Analysis, schedule: Schedule, least: Sizes, target: Target, static_loops: bool, headroom_for: int
) -> tuple[FusedProgram, tuple[ArenaShape, ...]]:
    """Returns a program for a batch, and its arenas.

    Args:
        analysis, schedule: the batch and its schedule.
        least: the least sizes.
        target: what the program is made for.
        static_loops: whether loops have static trip counts.
        headroom_for: add headroom for other batches of this many samples; 0 for none.
    """
    sizing = Sizing(analysis, schedule, least, target, static_loops, headroom_for)
    phases = tuple(
        sizing.loop(members) if is_loop else sizing.single(members[0]) for members, is_loop in analysis.types.phases
    )
    return FusedProgram(phases, sizing.sizes()), sizing.arenas()


class Sizing:
    """Sizes the phases of a program, one after the other."""

    def __init__(
        self, analysis: Analysis, schedule: Schedule, least: Sizes, target: Target, static_loops: bool,
        headroom_for: int,
    ):  # fmt: skip
        self.analysis = analysis
        self.types = types = analysis.types
        self.flows = analysis.flows
        self.carries = [self._carries(type_id) for type_id in range(len(types.kinds))]
        self.measured = schedule.measure(self.carries, static_loops)
        self.loop_ids = {members: loop for loop, members in enumerate(m for m, is_loop in types.phases if is_loop)}
        self.least = least
        self.target = target
        self.static_loops = static_loops
        self.headroom_for = headroom_for
        self.headroom, self.headroom_of_all = np.ones(len(types.kinds)), 1.0
        if headroom_for:
            self.headroom = headroom(_type_counts(analysis), headroom_for)
            nodes = np.array([graph.node_count for graph in analysis.graphs])
            self.headroom_of_all = float(headroom(nodes, headroom_for))
        self.nodes: dict[Origin, int] = {}
        self.terms: dict[Origin, int] = {}
        self.loops: dict[frozenset[Origin], LoopSizes] = {}
        counts = analysis.packed.counts.tolist()
        self.inputs = {c: _size(n, least.inputs.get(c, 0), self.headroom_of_all) for c, n in enumerate(counts)}
        self.next_row = [len(analysis.shared_rows[c]) + self.inputs[c] for c in self.inputs]
        used = {c for c, rows in enumerate(self.next_row) if rows}
        self.arena_classes = sorted(used.union(*types.writes), key=analysis.tables.class_order)
        self.arena_of = {c: arena_id for arena_id, c in enumerate(self.arena_classes)}

    def _carries(self, type_id: int) -> list[int]:
        """Returns the value class of each row operand of a type, or `NONE` if no derivative passes through it."""
        kind = self.types.kinds[type_id]
        avals = [aval for aval, bound in zip(kind.cell.in_avals, kind.binding, strict=True) if bound == NONE]
        operands = zip(self.types.reads[type_id], avals, self.flows[type_id], strict=True)
        return [c if is_float(aval) and flows else NONE for c, aval, flows in operands]

    def arenas(self) -> tuple[ArenaShape, ...]:
        """Returns the arenas. Call it after all phases have their sizes."""
        shared = self.analysis.shared_rows
        return tuple(ArenaShape(c, shared[c], self.inputs[c], max(self.next_row[c], 1)) for c in self.arena_classes)

    def sizes(self) -> Sizes:
        """Returns the sizes of the program."""
        return Sizes(
            profile=self.types.profile,
            exemplars=self.types.exemplars,
            nodes=self.nodes,
            terms=self.terms,
            inputs=self.inputs,
            shared=frozenset(shared_id for rows in self.analysis.shared_rows for shared_id in rows),
            loops=self.loops,
        )

    def _arenas(self, classes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.arena_of[value_class] for value_class in classes)

    def single(self, type_id: int) -> SingleShape:
        """Sizes a phase that is not a loop."""
        reads, writes = self._arenas(self.types.reads[type_id]), self._arenas(self.types.writes[type_id])
        return SingleShape(self._block(type_id), reads, writes)

    def _block(self, type_id: int, margin: int = 0, widths: tuple[int, ...] = ()) -> Block:
        kind, origin, more = self.types.kinds[type_id], self.types.origins[type_id], self.headroom[type_id]
        # There is room for at least one node. A reduction of one term is no node, so a type may have none.
        count = max(self.measured.nodes[type_id], 1)
        capacity = self.nodes[origin] = _size(count, size_of(self.least.nodes, origin), more)
        terms = 0
        if kind.is_variadic:
            count = max(self.measured.terms[type_id], 1)
            terms = self.terms[origin] = _size(count, size_of(self.least.terms, origin), more)
        starts_of_outputs = []
        for out_class in self.types.writes[type_id]:
            starts_of_outputs.append(self.next_row[out_class])
            self.next_row[out_class] += capacity + 2 * margin
        fitting = tuple(width for width in widths if width <= capacity + 2 * margin)
        return Block(kind, capacity, tuple(starts_of_outputs), self.flows[type_id], fitting, terms)

    def loop(self, members: tuple[int, ...]) -> LoopShape:
        """Sizes a loop of some types."""
        origins = [self.types.origins[t] for t in members]
        least = self.least.of_loop(origins)
        largest = max(_enlarged(max(self.measured.widest[t], 1), self.headroom[t]) for t in members)
        if self.static_loops:
            margin = max(round_up(largest), least.width)
            widths: tuple[int, ...] = (margin,)
        else:
            widths = widths_for(self.target, largest, least.width)
            margin = overshoot(widths, self.target.launch)
        blocks = [self._block(t, margin, widths) for t in members]
        if self.static_loops:
            blocks = [self._with_longest(block, t, least) for block, t in zip(blocks, members, strict=True)]
        edges, edge_rows = self._edges(members, blocks, margin)
        loop = self.loop_ids[members]
        pairs = self._by_class(self.measured.pairs[loop])
        pair_rows = tuple(map(self._room_for_pairs, pairs, edge_rows, self._by_class(least.pairs)))
        pair_trips = None
        if self.static_loops:
            trips = zip(self._by_class(self.measured.pair_trips[loop]), self._by_class(least.pair_trips), strict=True)
            pair_trips = tuple(_size(count, enough, self.headroom_of_all) for count, enough in trips)
        rounds = max(self._room_for_rounds(self.measured.rounds[loop]), least.rounds)
        self.loops[frozenset(origins)] = LoopSizes(
            rounds=rounds,
            width=widths[-1],
            pairs=dict(zip(self.arena_classes, pair_rows, strict=True)),
            pair_trips=dict(zip(self.arena_classes, pair_trips or (), strict=False)),
            longest=max(block.longest for block in blocks),
        )
        return LoopShape(
            blocks=tuple(blocks),
            margin=margin,
            rounds=rounds,
            reads=tuple(self._arenas(self.types.reads[t]) for t in members),
            writes=tuple(self._arenas(self.types.writes[t]) for t in members),
            edges=edges,
            edge_rows=edge_rows,
            pair_rows=pair_rows,
            pair_trips=pair_trips,
            platform=self.target.platform,
        )

    def _by_class(self, counts: Mapping[int, int]) -> list[int]:
        return [counts.get(c, 0) for c in self.arena_classes]

    def _with_longest(self, block: Block, type_id: int, least: LoopSizes) -> Block:
        if not block.kind.is_variadic:
            return block
        return replace(block, longest=_size(self.measured.longest[type_id], least.longest, self.headroom_of_all))

    def _edges(
        self, members: tuple[int, ...], blocks: list[Block], margin: int
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """Returns the first cotangent row of each type and row operand, and the number of them in each arena."""
        edge_rows = [1] * len(self.arena_classes)  # row 0 stays zero
        begins = []
        for type_id, block in zip(members, blocks, strict=True):
            block_begins = []
            for carried in self.carries[type_id]:
                if carried == NONE:
                    block_begins.append(NONE)
                else:
                    block_begins.append(edge_rows[self.arena_of[carried]])
                    edge_rows[self.arena_of[carried]] += block.capacity + 2 * margin
            begins.append(tuple(block_begins))
        return tuple(begins), tuple(rows if rows > 1 else 0 for rows in edge_rows)

    def _room_for_pairs(self, pairs: int, edge_rows: int, least: int) -> int:
        # A small number of pairs varies much. Room for a sixteenth of the cotangent rows costs little.
        enough = max(pairs + PAIR_WIDTH, edge_rows // 16) if pairs else 0
        more = max(self.headroom_of_all, PAIRS_HEADROOM) if self.headroom_for else 1.0
        return _size(enough, least, more) if edge_rows else 0

    def _room_for_rounds(self, rounds: int) -> int:
        """Returns the number of rounds with room to grow.

        With dynamic trip counts, unused rounds cost only rows of small tables: the number is rounded up to 64, 256,
        1024, and so on.
        """
        if self.static_loops:
            return round_up(_enlarged(rounds, self.headroom_of_all))
        room = 64
        while room < rounds:
            room *= 4
        return room


def _type_counts(analysis: Analysis) -> np.ndarray:
    """Returns int [samples, types], the number of nodes of each type in each sample."""
    counts = np.zeros((len(analysis.graphs), len(analysis.types.kinds)), np.int64)
    for sample, graph in enumerate(analysis.graphs):
        for type_id, count in graph.type_counts.items():
            counts[sample, type_id] = count
    return counts


def _size(count: int, least: int, headroom: float = 1.0) -> int:
    return max(round_up(_enlarged(count, headroom)) if count else 0, least)


def _enlarged(count: int, headroom: float) -> int:
    return math.ceil(count * headroom)
