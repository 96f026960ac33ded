"""The fused executor: the schedule is data for one XLA program.

A batch runs phase by phase (see `_phases`). A phase that is not a loop is one vmapped call over all its nodes. A loop
runs round by round; in a round, each of its types runs over the nodes that are ready, in chunks of a few static
widths. Trip counts, chunk positions and operand rows are tables, so that one compiled program runs any minibatch of any
samples with these types and sizes.

Every output of every type has a block of rows in its arena, and the nodes of a type lie in its blocks in the order of
execution, so a chunk writes contiguous rows. The last chunk of a round may be wider than what is left: what it writes
too much is written again by the next round, or lies in the margin behind the nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch import _compat, _varying
from jitbatch._analysis import Analysis
from jitbatch._chunks import chunks_of, overshoot, widths_for
from jitbatch._compat import is_float
from jitbatch._cut import cut_cell
from jitbatch._errors import VerifyError
from jitbatch._graph import ROW, Graph
from jitbatch._loop import Block, LoopShape, put, run_loop
from jitbatch._lowering import ArenaShape, Lowered, round_up
from jitbatch._pairs import PAIR_WIDTH, PairSums, pair_sums, stable_order
from jitbatch._phases import rounds_of, rounds_of_layers
from jitbatch._schedule import LAYERED, Policy
from jitbatch._segments import gather, segment_sums
from jitbatch._types import Origin, Profile


@dataclass(frozen=True)
class SingleShape:
    """The static part of a phase that is not a loop: its type, and the arenas of its row operands and outputs."""

    block: Block
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class LoopSizes:
    """What a loop has room for: rounds, the width of a chunk, and of each class sums of pairs; where trip counts are
    static, also chunks of these at once, and terms a sum."""

    rounds: int = 0
    width: int = 0
    pairs: Mapping[int, int] = field(default_factory=dict)
    pair_trips: Mapping[int, int] = field(default_factory=dict)
    longest: int = 0


@dataclass(frozen=True)
class Sizes:
    """What a program has room for. A plan made `like` another has at least the other's sizes.

    Attributes:
        profile: the kinds of node and the edges between them.
        exemplars: graphs that have these kinds and edges.
        nodes, terms: how many nodes of each type, in the order in which they run; of sums, how many terms.
        inputs: how many input rows of each class.
        shared: the shared values that are rows.
        loops: the sizes of each loop, by its types.
    """

    profile: Profile = field(default_factory=Profile)
    exemplars: tuple[Graph, ...] = ()
    nodes: Mapping[Origin, int] = field(default_factory=dict)
    terms: Mapping[Origin, int] = field(default_factory=dict)
    inputs: Mapping[int, int] = field(default_factory=dict)
    shared: frozenset[int] = frozenset()
    loops: Mapping[frozenset[Origin], LoopSizes] = field(default_factory=dict)

    def of_loop(self, origins: Sequence[Origin]) -> LoopSizes:
        """The sizes of the loops that have become the loop of these types."""
        own = [size for loop, size in self.loops.items() if any(_same(a, b) for a in loop for b in origins)]
        return LoopSizes(
            rounds=max((size.rounds for size in own), default=0),
            width=max((size.width for size in own), default=0),
            pairs=_largest([size.pairs for size in own]),
            pair_trips=_largest([size.pair_trips for size in own]),
            longest=max((size.longest for size in own), default=0),
        )


def _largest(sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    return {key: max(one.get(key, 0) for one in sizes) for one in sizes for key in one}


def _same(one: Origin, other: Origin) -> bool:
    """Whether a type may have become another: with more kinds known, an operand that was shared may be a row."""
    return (one.body, one.part) == (other.body, other.part)


def _size_of(sizes: Mapping[Origin, int], origin: Origin) -> int:
    found = sizes.get(origin)
    return max((n for o, n in sizes.items() if _same(o, origin)), default=0) if found is None else found


@dataclass(frozen=True)
class FusedProgram:
    """Phases, one after the other."""

    phases: tuple[SingleShape | LoopShape, ...]
    sizes: Sizes = field(compare=False, repr=False)

    @property
    def blocks(self) -> list[Block]:
        return [b for phase in self.phases for b in ([phase.block] if isinstance(phase, SingleShape) else phase.blocks)]

    @property
    def shared(self) -> set[int]:
        return {bound for block in self.blocks for bound in block.kind.binding if bound != ROW}

    def run(self, tables: Sequence[Any], arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        axes = _varying.axes_of(tables)
        made: list[list[tuple[int, Any]]] = [[] for _ in arenas]  # rows that no arena has yet, and where they begin
        for phase, table in zip(self.phases, tables, strict=True):
            if isinstance(phase, SingleShape):
                arenas = _with_rows(arenas, made, phase.reads)
                with phase.block.kind.cell.scope():
                    results = _run_single(phase, table, arenas, shared)
                for arena, start, rows in zip(phase.writes, phase.block.starts, results, strict=True):
                    made[arena].append((start, rows))
            else:
                arenas = _with_rows(arenas, made, range(len(arenas)))
                given = tuple(_varying.cast(_given(block, shared), axes) for block in phase.blocks)
                arenas = list(run_loop(phase, tuple(arenas), given, table))
        return _with_rows(arenas, made, range(len(arenas)))

    def describe(self, tables: Sequence[Any]) -> list[str]:
        lines = []
        for number, (phase, table) in enumerate(zip(self.phases, tables, strict=True)):
            if isinstance(phase, SingleShape):
                lines.append(f"  phase {number}: {phase.block.kind.cell.name} x{table['total']}")
            else:
                names = ", ".join(block.kind.cell.name for block in phase.blocks)
                total = "?" if _compat.is_tracer(table["total"]) else int(np.sum(table["total"]))
                lines.append(f"  phase {number}: {table['rounds']} rounds of {names} x{total}")
        return lines


def _with_rows(arenas: Sequence[Any], made: list[list[tuple[int, Any]]], wanted: Iterable[int]) -> list[Any]:
    """The wanted arenas with the rows that were made for them, which lie one after the other. They are written at once:
    each write would cost a copy of the arena's cotangent in the backward pass."""
    arenas = list(arenas)
    for arena in wanted:
        if made[arena]:
            arenas[arena] = put(arenas[arena], jnp.concatenate([rows for _, rows in made[arena]]), made[arena][0][0])
            made[arena] = []
    return arenas


def _given(block: Block, shared: dict[int, Any]) -> list[Any]:
    operands = [shared[bound] for bound in block.kind.binding if bound != ROW]
    return cut_cell(block.kind.cell, block.is_row).prologue(operands)


def _run_single(shape: SingleShape, table: Any, arenas: Sequence[Any], shared: dict[int, Any]) -> list[Any]:
    """The rows of each output."""
    block = shape.block
    kind = block.kind
    if kind.is_variadic:
        return [segment_sums(arenas[shape.reads[0]], table["terms"], table["segments"], block.capacity)]
    read = [gather(arenas[arena], rows) for arena, rows in zip(shape.reads, table["operands"], strict=True)]
    bound = [shared[number] for number in kind.binding if number != ROW]

    def compute(read: list[Any], bound: list[Any]) -> list[Any]:
        rows, values = iter(read), iter(bound)
        operands = [next(rows) if row else next(values) for row in block.is_row]
        axes = tuple(0 if row else None for row in block.is_row)
        return list(jax.vmap(kind.cell, in_axes=axes, axis_size=block.capacity)(*operands))

    def nothing(read: list[Any], bound: list[Any]) -> list[Any]:
        avals = jax.eval_shape(compute, read, bound)
        zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in avals]
        return _varying.cast(zeros, _varying.axes_of((read, bound)))

    # A type that this batch lacks is not computed: its padding has no real row to repeat.
    return lax.cond(table["total"] > 0, compute, nothing, read, bound)


def lower(
    analysis: Analysis, policy: Policy, sizes: Sizes | None = None, static_loops: bool = False, verify: bool = False
) -> Lowered:
    """Phases, with tables for this batch and room for at least `sizes`."""
    return Lowering(analysis, policy, sizes or Sizes(), static_loops, verify).lower()


class LoopPlace(NamedTuple):
    """A loop whose nodes have rows: for each type its block, its nodes in the order of execution, their rounds, and
    where it comes from; how many rows chunks may write too much; and the widths that chunks can have."""

    blocks: list[Block]
    nodes: list[np.ndarray]
    rounds: list[np.ndarray]
    origins: list[Origin]
    margin: int
    widths: tuple[int, ...]


class Lowering:
    """Makes the phases and tables of a batch."""

    def __init__(self, analysis: Analysis, policy: Policy, least: Sizes, static_loops: bool, verify: bool):
        self.analysis = analysis
        self.tables = tables = analysis.tables
        self.policy = policy
        self.least = least
        self.static_loops = static_loops
        self.verify = verify
        self.value_row = analysis.value_row.copy()
        self.steps = self.launches = self.padded_rows = self.bound = 0
        self.nodes: dict[Origin, int] = {}
        self.terms: dict[Origin, int] = {}
        self.loops: dict[frozenset[Origin], LoopSizes] = {}
        self.kinds, self.origins = analysis.types.kinds, analysis.types.origins
        self.type = analysis.batch.type[analysis.nodes]
        self.round = self._rounds()
        # The distinct nodes in the order in which the rows of their types lie.
        rounds = int(self.round.max(initial=0)) + 1
        order = stable_order(self.type * rounds + self.round, len(self.kinds) * rounds)
        self.ordered = np.split(order, np.cumsum(np.bincount(self.type, minlength=len(self.kinds)))[:-1])

        self.inputs = {c: self._size(int(n), least.inputs.get(c)) for c, n in enumerate(analysis.packed.counts)}
        self.next_row = [len(analysis.shared_rows[c]) + self.inputs[c] for c in range(len(tables.classes))]
        used = {c for c, rows in enumerate(self.next_row) if rows}
        for kind in self.kinds:
            used.update(tables.class_of(a) for a in kind.cell.out_avals)
        self.arena_classes = sorted(used, key=tables.class_order)
        self.arena_of = {c: place for place, c in enumerate(self.arena_classes)}

    def _rounds(self) -> np.ndarray:
        """The round of each distinct node that runs in a loop."""
        analysis, types = self.analysis, self.analysis.types
        layer = analysis.batch.layer[analysis.nodes]
        rounds = np.zeros(len(layer), np.int64)
        counts = np.zeros(len(types.kinds), np.int64)
        np.maximum.at(counts, self.type, layer + 1)
        self.bound = int(counts.sum())
        loops = [members for members, is_loop in types.phases if is_loop]
        needs = np.zeros((4, 0), np.int64)
        if self.policy in LAYERED and any(len(members) > 1 for members in loops):
            needs = np.concatenate([piece.needs for piece in analysis.pieces], axis=1)
        for members in loops:
            place = np.full(len(types.kinds), -1)
            place[list(members)] = np.arange(len(members))
            here = np.flatnonzero(place[self.type] >= 0)
            table = None
            if self.policy in LAYERED:
                own = needs[:, place[needs[0]] >= 0]
                own[[0, 2]] = place[own[[0, 2]]]
                table = rounds_of_layers(counts[list(members)].tolist(), own)
            if table is not None:
                rounds[here] = table[place[self.type[here]], layer[here]]
            else:
                rounds[here] = rounds_of(analysis.problem, here, members, self.policy, self.verify)
            if self.verify:
                self._verify_rounds(rounds, place)
        return rounds

    def _verify_rounds(self, rounds: np.ndarray, place: np.ndarray) -> None:
        """Check that a node of a loop runs after what it reads in the loop; `place` is that of types in a round."""
        problem = self.analysis.problem
        inside = (place[problem.type[problem.reader]] >= 0) & (place[problem.type[problem.read]] >= 0)
        when = rounds * len(place) + place[problem.type]
        if np.any(when[problem.reader[inside]] <= when[problem.read[inside]]):
            raise VerifyError("rounds: a node of a loop runs after what it reads")

    def _size(self, count: int, least: int | None) -> int:
        return max(round_up(count) if count else 0, least or 0)

    def lower(self) -> Lowered:
        placed = [
            self._place_loop(types) if is_loop else self._place_single(types[0])
            for types, is_loop in self.analysis.types.phases
        ]
        self.analysis.place_merged(self.value_row)
        lowered = [
            self._lower_loop(place) if isinstance(place, LoopPlace) else self._lower_single(*place) for place in placed
        ]
        shapes, tables = zip(*lowered, strict=True) if lowered else ((), ())
        arenas = tuple(
            ArenaShape(c, self.analysis.shared_rows[c], self.inputs[c], max(self.next_row[c], 1))
            for c in self.arena_classes
        )
        sizes = Sizes(
            profile=self.analysis.types.profile,
            exemplars=self.analysis.types.exemplars,
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

    def _allocate(self, kind: Any, rows: int) -> tuple[int, ...]:
        starts = []
        for out_class in map(self.tables.class_of, kind.cell.out_avals):
            starts.append(self.next_row[out_class])
            self.next_row[out_class] += rows
        return tuple(starts)

    def _place_single(self, number: int) -> tuple[Block, np.ndarray]:
        nodes = self.analysis.nodes[self.ordered[number]]
        block = self._block(number, nodes)
        capacity = block.capacity
        self.steps += len(nodes) > 0
        self.launches += len(nodes) > 0
        self.padded_rows += capacity
        self.analysis.place(self.value_row, nodes, [start + np.arange(len(nodes)) for start in block.starts])
        return block, nodes

    def _block(self, number: int, nodes: np.ndarray, margin: int = 0, widths: tuple[int, ...] = ()) -> Block:
        kind, origin = self.kinds[number], self.origins[number]
        capacity = self.nodes[origin] = self._size(len(nodes), _size_of(self.least.nodes, origin))
        terms = 0
        if kind.is_variadic:
            starts = self.analysis.batch.operand_start
            count = int((starts[nodes + 1] - starts[nodes]).sum())
            terms = self.terms[origin] = self._size(count, _size_of(self.least.terms, origin))
        fitting = tuple(width for width in widths if width <= capacity + 2 * margin)
        return Block(kind, capacity, self._allocate(kind, capacity + 2 * margin), fitting, terms)

    def _place_loop(self, types: tuple[int, ...]) -> "LoopPlace":
        ordered = [self.analysis.nodes[self.ordered[t]] for t in types]
        rounds_by_type = [self.round[self.ordered[t]] for t in types]
        largest = max((int(np.bincount(rounds).max(initial=1)) for rounds in rounds_by_type), default=1)
        blocks = []
        origins = [self.origins[t] for t in types]
        if self.static_loops:
            margin = widest = max(round_up(largest), self.least.of_loop(origins).width)
            widths: tuple[int, ...] = (widest,)
        else:
            widths = widths_for(largest, self.least.of_loop(origins).width)
            margin = overshoot(widths)
        for t, nodes in zip(types, ordered, strict=True):
            block = self._block(t, nodes, margin, widths)
            if self.static_loops and block.kind.is_variadic:
                starts = self.analysis.batch.operand_start
                longest = int((starts[nodes + 1] - starts[nodes]).max(initial=0))
                block = replace(block, longest=self._size(longest, self.least.of_loop(origins).longest))
            rows = [start + margin + np.arange(len(nodes)) for start in block.starts]
            self.analysis.place(self.value_row, nodes, rows)
            blocks.append(block)
        return LoopPlace(blocks, ordered, rounds_by_type, origins, margin, widths)

    # Tables

    def _arenas(self, avals: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.arena_of[self.tables.class_of(aval)] for aval in avals)

    def _row_avals(self, block: Block) -> list[Any]:
        return [aval for aval, row in zip(block.kind.cell.in_avals, block.is_row, strict=True) if row]

    def _lower_single(self, block: Block, nodes: np.ndarray) -> tuple[SingleShape, dict[str, Any]]:
        shape = SingleShape(block, self._arenas(self._row_avals(block)), self._arenas(block.kind.cell.out_avals))
        total = np.array(len(nodes), np.int32)
        if block.kind.is_variadic:
            terms, counts = self.analysis.terms(nodes, self.value_row)
            segments = np.repeat(np.arange(len(nodes)), counts)
            return shape, {
                "terms": _filled(terms, block.terms, 0),
                "segments": _filled(segments, block.terms, block.capacity),
                "total": total,
            }
        rows = self.analysis.operand_rows(nodes, self.value_row, block.kind.rows)
        return shape, {"operands": _extended(rows, 0, block.capacity).astype(np.int32), "total": total}

    def _lower_loop(self, place: "LoopPlace") -> tuple[LoopShape, dict[str, Any]]:
        blocks, ordered, rounds, origins, margin, widths = place
        rounds_count = max(int(r.max(initial=-1)) for r in rounds) + 1
        least = self.least.of_loop(origins)
        room = max(self._size(rounds_count, least.rounds), 1)
        counts = np.stack([np.bincount(r, minlength=room) for r in rounds], axis=1)
        first = np.cumsum(counts, axis=0) - counts
        chunks = np.zeros((*counts.shape, len(widths)), np.int64)
        for t, block in enumerate(blocks):
            chunks[:, t, : len(block.widths)] = chunks_of(counts[:, t], block.widths)
        if self.static_loops:
            chunks[:] = 1
        self.steps += int(np.count_nonzero(counts))
        self.launches += int(chunks.sum())
        self.padded_rows += int((chunks * widths).sum())

        reads = [self._arenas(self._row_avals(block)) for block in blocks]
        writes = [self._arenas(block.kind.cell.out_avals) for block in blocks]
        operand_tables: list[Any] = []
        edges: list[tuple[int, ...]] = []
        edge_next = [1] * len(self.arena_classes)  # edge row 0 stays zero
        targets: list[list[np.ndarray]] = [[] for _ in self.arena_classes]
        sources: list[list[np.ndarray]] = [[] for _ in self.arena_classes]
        terms_of: list[list[tuple[np.ndarray, np.ndarray, int]]] = [[] for _ in self.arena_classes]
        for block, nodes, read in zip(blocks, ordered, reads, strict=True):
            if block.kind.is_variadic:
                # Every term of a sum has the cotangent of the sum: one edge row a sum.
                arena = read[0]
                terms, arity = self.analysis.terms(nodes, self.value_row)
                room_for_nodes = 2 * margin + block.capacity
                operand_tables.append(
                    {
                        "terms": _filled(terms, block.terms, 0),
                        "first": _filled(np.cumsum(arity) - arity, room_for_nodes, 0, margin),
                        "count": _filled(arity, room_for_nodes, 0, margin),
                    }
                )
                edges.append((edge_next[arena] if is_float(self._row_avals(block)[0]) else -1,))
                if edges[-1][0] >= 0:
                    of_term = edge_next[arena] + margin + np.repeat(np.arange(len(nodes)), arity)
                    terms_of[arena].append((terms, of_term, block.terms))
                    edge_next[arena] += room_for_nodes
                continue
            rows = self.analysis.operand_rows(nodes, self.value_row, block.kind.rows)
            padded = _extended(rows, margin, 2 * margin + block.capacity)
            operand_tables.append(np.ascontiguousarray(padded.T, np.int32))
            begins = []
            for slot, (arena, aval) in enumerate(zip(read, self._row_avals(block), strict=True)):
                if not is_float(aval):
                    begins.append(-1)
                    continue
                begins.append(edge_next[arena])
                targets[arena].append(rows[slot])
                sources[arena].append(edge_next[arena] + margin + np.arange(len(nodes)))
                edge_next[arena] += block.capacity + 2 * margin
            edges.append(tuple(begins))
        edge_rows = [n if n > 1 else 0 for n in edge_next]

        # When the cotangent of a row that the loop makes is due: in the transposed order of rounds and types.
        types = len(blocks)
        due = [np.full(max(self.next_row[c], 1), -1, np.int64) for c in self.arena_classes]
        for t, (block, nodes, write) in enumerate(zip(blocks, ordered, writes, strict=True)):
            when = (rounds_count - 1 - rounds[t]) * types + (types - 1 - t)
            for arena, start in zip(write, block.starts, strict=True):
                due[arena][start + margin + np.arange(len(nodes))] = when
        pairs: list[PairSums | None] = [None] * len(edge_rows)
        pair_rows = [0] * len(edge_rows)
        row_of_edge: list[np.ndarray | None] = [None] * len(edge_rows)
        row_of_term: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(edge_rows)
        for arena, (c, base, when) in enumerate(zip(self.arena_classes, edge_rows, due, strict=True)):
            if not base:
                continue
            none = len(when)
            target = np.concatenate([*targets[arena], *(terms for terms, _, _ in terms_of[arena])])
            source = np.concatenate([*sources[arena], *(edges for _, edges, _ in terms_of[arena])])
            inside = when[target] >= 0
            pairs[arena] = pair = pair_sums(target[inside], source[inside], when, base)
            wanted = len(pair.left) + PAIR_WIDTH if len(pair.left) else 0
            pair_rows[arena] = self._size(wanted, least.pairs.get(c))
            # What is not made here: an edge row belongs to one such row, but that of a sum to those of all its terms.
            row_of_edge[arena] = rows = np.full(base + pair_rows[arena], none, np.int32)
            for read, edge in zip(targets[arena], sources[arena], strict=True):
                rows[edge] = np.where(when[read] < 0, read, none)
            if terms_of[arena]:
                outside = [_filled(np.where(when[t] < 0, t, none), n, none) for t, _, n in terms_of[arena]]
                of_terms = [_filled(edge, n, 0) for _, edge, n in terms_of[arena]]
                row_of_term[arena] = np.concatenate(of_terms), np.concatenate(outside)
        fitted = [
            pair.fitted(rows, rounds_count, room, types) if pair is not None and rows else None
            for pair, rows in zip(pairs, pair_rows, strict=True)
        ]
        pair_trips = None
        if self.static_loops:
            most = [0 if f is None else _longest(f["pair_span"]) for f in fitted]
            pair_trips = tuple(
                self._size(n, least.pair_trips.get(c)) for n, c in zip(most, self.arena_classes, strict=True)
            )
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
            edges=tuple(edges),
            edge_rows=tuple(edge_rows),
            pair_rows=tuple(pair_rows),
            pair_trips=pair_trips,
        )
        tables: dict[str, Any] = {
            "rounds": np.array(rounds_count, np.int32),
            "first": first.astype(np.int32),
            "count": counts.astype(np.int32),
            "chunks": chunks.astype(np.int32),
            "total": counts.sum(axis=0).astype(np.int32),
            "operands": tuple(operand_tables),
            "edge_of_row": tuple(None if p is None else p.edge_of_row.astype(np.int32) for p in pairs),
            "row_of_edge": tuple(row_of_edge),
            "row_of_term": tuple(row_of_term),
        }
        for name in ("pair_left", "pair_right", "pair_start", "pair_span"):
            tables[name] = tuple(None if f is None else f[name] for f in fitted)
        return shape, tables


def _longest(spans: np.ndarray) -> int:
    return int((spans[..., 1] - spans[..., 0]).max(initial=0))


def _filled(numbers: np.ndarray, length: int, value: int, before: int = 0) -> np.ndarray:
    """Numbers with a value before and after them, up to a length."""
    filled = np.full(length, value, np.int32)
    filled[before : before + len(numbers)] = numbers
    return filled


def _extended(rows: np.ndarray, before: int, length: int) -> np.ndarray:
    """Columns before the first that repeat it, and after the last that repeat it, up to a length; zeros for none."""
    if not rows.shape[1]:
        return np.zeros((rows.shape[0], length), rows.dtype)
    index = np.clip(np.arange(length) - before, 0, rows.shape[1] - 1)
    return rows[:, index]
