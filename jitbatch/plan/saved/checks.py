"""Checks of a plan that was loaded: its sizes follow from each other, and its tables have these sizes.

A file may have been made up by someone, checksum and all. Whatever it says, running the plan may fail with an error
only: no size in it is larger than the tables that are in the file, and no table refers to a row that is not there. What
only the function knows is checked when the plan is first used (`check_blocks`, `check_steps`).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.execute.fused.loop import Block, LoopShape
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.lowering import ArenaShape, round_up
from jitbatch.ir.tables import ROW, Kind, Tables
from jitbatch.plan.capacity import class_named
from jitbatch.plan.saved.content import Content, SavedStep
from jitbatch.plan.saved.values import CHANGED, damaged
from jitbatch.plan.static import Summary
from jitbatch.util import compat
from jitbatch.util.errors import PlanError

HEADROOM = 16
"""Sums of one loop have room for as many terms as the longest of all of them, with headroom of its own."""


def _check(holds: Any, law: str) -> None:
    if not holds:
        damaged(law)


# Sizes


def check_sizes(content: Content) -> None:
    """Refuse sizes that no plan has."""
    arenas = content.arenas
    classes = [class_named(arena.value_class) for arena in arenas]
    _check(len(set(classes)) == len(classes), "an arena for each class of values")
    _check(all(arena.inputs >= 0 and arena.capacity >= 1 for arena in arenas), "the size of an arena")
    places = itertools.chain(*content.out_arenas)
    _check(all(0 <= place < len(arenas) for place in places), "an arena of results that is not there")
    _check(len(content.out_arenas) == len(content.out_trees) >= 1, "a tree and arenas for each result")
    _check(content.out == "list" or len(content.out_trees) == 1, "one tree of results")
    rows = [len(arena.shared) + arena.inputs for arena in arenas]
    if content.phases is None:
        for step in content.steps or ():
            _check(step.width >= 1 and step.outputs >= 0, "the size of a step")
            _check(len(step.flows) == step.kind.rows, "the operands of a step")
        return
    most = max((block.terms for _, block, _, _ in _blocks(content.phases)), default=0)
    for phase, block, reads, writes in _blocks(content.phases):
        margin = phase.margin if isinstance(phase, LoopShape) else 0
        _check(block.capacity >= 1 and margin >= 0 and block.terms >= 0, "the size of a block")
        _check(0 <= block.longest <= HEADROOM * most, "the terms of a sum")
        _check(len(reads) == len(block.flows) == block.kind.rows, "the operands of a block")  # type: ignore[attr-defined]
        _check(all(0 <= place < len(arenas) for place in (*reads, *writes)), "an arena that is not there")
        _check(len(writes) == len(block.starts), "the outputs of a block")
        for place, start in zip(writes, block.starts, strict=True):
            _check(start == rows[place], "where the rows of a block begin")
            rows[place] += block.capacity + 2 * margin
    _check([arena.capacity for arena in arenas] == [max(count, 1) for count in rows], "the rows of an arena")
    for phase in content.phases:
        if isinstance(phase, LoopShape):
            _check_loop(phase, [compat.is_float(own) for own in classes])


def _blocks(phases: Sequence[Any]) -> Iterator[tuple[Any, Block, tuple[int, ...], tuple[int, ...]]]:
    """The blocks of all phases in order, with the arenas of operands and of outputs."""
    for phase in phases:
        if isinstance(phase, SingleShape):
            yield phase, phase.block, phase.reads, phase.writes
            continue
        _check(len(phase.blocks) == len(phase.reads) == len(phase.writes) == len(phase.edges) >= 1, "a loop")
        for block, reads, writes in zip(phase.blocks, phase.reads, phase.writes, strict=True):
            yield phase, block, reads, writes


def _check_loop(loop: LoopShape, is_float: Sequence[bool]) -> None:
    count = [1] * len(is_float)
    for block, reads, edges in zip(loop.blocks, loop.reads, loop.edges, strict=True):
        room = block.capacity + 2 * loop.margin
        widths = list(block.widths)
        _check(widths and widths == sorted(set(widths)) and 1 <= widths[0] <= widths[-1] <= room, "widths of chunks")
        _check(len(edges) == len(reads), "the edges of a block")
        for place, begin, flows in zip(reads, edges, block.flows, strict=True):
            _check(begin == (count[place] if is_float[place] and flows else -1), "where edge rows begin")
            count[place] += room if begin >= 0 else 0
    _check(list(loop.edge_rows) == [rows if rows > 1 else 0 for rows in count], "the edge rows of a loop")
    _check(len(loop.pair_rows) == len(count) and min(loop.pair_rows, default=0) >= 0, "the pairs of a loop")
    _check(loop.rounds >= 1, "the rounds of a loop")
    trips = loop.pair_rows if loop.pair_trips is None else loop.pair_trips
    _check(len(trips) == len(count), "the chunks of pairs of a loop")
    for rows, pairs, most in zip(loop.edge_rows, loop.pair_rows, trips, strict=True):
        _check(0 <= most <= pairs and (rows > 0 or pairs == 0), "the pairs of edge rows")


# Tables


class _Tables:
    """Compares arrays with the shape and the range of values that they have to have. Those of shards are stacked."""

    def __init__(self, shards: tuple[int, ...]):
        self.shards = shards

    def check(self, array: Any, shape: Sequence[int | None], end: Any, what: str, begin: int = 0) -> None:
        """Refuse an array of another shape, in which None is any size, or with a value that is not below `end`."""
        is_array = isinstance(array, np.ndarray) and array.dtype == np.int32
        _check(is_array and array.ndim == len(self.shards) + len(shape), f"{what}: a table of another kind")
        wanted = (*self.shards, *shape)
        _check(all(n in (None, size) for n, size in zip(wanted, array.shape, strict=True)), f"{what}: the size")
        _check(np.all((array >= begin) & (array < end)), f"{what}: a row that is not there")

    def check_missing(self, one: Any, is_there: bool, what: str) -> bool:
        _check((one is not None) == is_there, f"{what}: a table")
        return is_there


class PlanArrays(NamedTuple):
    """The arrays of a plan; see `Plan`."""

    inputs: tuple[Any, ...]
    tables: Any
    out_rows: tuple[Any, ...]
    ragged: Any
    counts: Any


def check_arrays(plan: PlanArrays, content: Content, outlines: Sequence[int]) -> None:
    """Refuse tables and rows that are not those of a plan of this static part.

    Args:
        outlines: how many items the nestings of ragged results have.
    """
    counts = plan.counts
    _check(isinstance(counts, np.ndarray) and counts.ndim in (1, 2), "the numbers of a plan")
    tables = _Tables(counts.shape[:-1])
    tables.check(counts, (len(Summary._fields),), 2**31, "the numbers of a plan")
    _check(len(plan.inputs) == len(content.arenas), "input rows for each arena")
    for arena, rows in zip(content.arenas, plan.inputs, strict=True):
        own = class_named(arena.value_class)
        if tables.check_missing(rows, arena.inputs > 0, "input rows"):
            shape = (*tables.shards, arena.inputs, *own.shape)
            _check((rows.shape, rows.dtype) == (shape, own.dtype), "input rows of another shape or dtype")
    if content.phases is None:
        _check_steps(plan, content, tables)
    else:
        _check(len(plan.tables) == len(content.phases), "tables for each phase")
        for phase, table in zip(content.phases, plan.tables, strict=True):
            check = _check_single if isinstance(phase, SingleShape) else _check_loop_tables
            check(phase, table, [arena.capacity for arena in content.arenas], tables)  # type: ignore[arg-type]
    _check_results(plan, content, outlines, tables)


def _check_results(plan: PlanArrays, content: Content, outlines: Sequence[int], tables: _Tables) -> None:
    capacity = [arena.capacity for arena in content.arenas]
    tables.check_missing(plan.ragged, content.out == "ragged", "ragged results")
    if content.out == "list":
        _check(len(plan.out_rows) == len(content.out_arenas), "rows of each result")
        for places, rows in zip(content.out_arenas, plan.out_rows, strict=True):
            tables.check(rows, (len(places),), np.array([capacity[place] for place in places], np.int64), "results")
        return
    _check(len(plan.out_rows) == len(content.out_arenas[0]), "rows of each result")
    size = plan.out_rows[0].shape[-1] if plan.out_rows else 0
    if plan.ragged is not None:
        ragged = plan.ragged
        size = ragged.mask.shape[-1]
        _check((ragged.mask.shape, ragged.mask.dtype) == ((*tables.shards, size), np.bool_), "the mask of items")
        samples = ragged.outline.shape[-1]
        tables.check(ragged.outline, (samples,), len(outlines), "the nesting of items")
        tables.check(ragged.sample, (size,), samples, "the sample of an item")
        tables.check(ragged.position, (size,), size + 1, "the position of an item")
        items = np.array(outlines, np.int64)[ragged.outline].sum(axis=-1)
        _check(np.all(ragged.mask.sum(axis=-1) == items), "how many items there are")
    for place, rows in zip(content.out_arenas[0], plan.out_rows, strict=True):
        tables.check(rows, (size,), capacity[place], "results")


def _check_single(phase: SingleShape, table: Any, capacity: Sequence[int], tables: _Tables) -> None:
    block = phase.block
    if not block.terms:
        _check(table.keys() == {"operands", "total"}, "the tables of a phase")
        ends = np.array([capacity[place] for place in phase.reads], np.int64)[:, None]
        tables.check(table["operands"], (len(phase.reads), block.capacity), ends, "operands")
    else:
        _check(table.keys() == {"terms", "segments", "total"} and len(phase.reads) == 1, "the tables of a sum")
        tables.check(table["terms"], (block.terms,), capacity[phase.reads[0]], "terms")
        tables.check(table["segments"], (block.terms,), block.capacity + 1, "the sums of terms")
        _check(np.all(np.diff(table["segments"], axis=-1) >= 0), "the order of terms")
    tables.check(table["total"], (), block.capacity + 1, "how many nodes there are")


_LOOP = ("rounds", "ends", "total", "operands", "edge_of_row", "row_of_edge", "row_of_term")
_PAIRS = ("pair_left", "pair_right", "pair_start")


def _check_loop_tables(loop: LoopShape, table: Any, capacity: Sequence[int], tables: _Tables) -> None:
    types = len(loop.blocks)
    _check(table.keys() == {*_LOOP, *_PAIRS, "pair_span"}, "the tables of a loop")
    rooms = np.array([block.capacity + 2 * loop.margin for block in loop.blocks], np.int64)
    tables.check(table["rounds"], (), loop.rounds + 1, "how many rounds there are")
    tables.check(table["total"], (types,), np.array([b.capacity for b in loop.blocks]) + 1, "how many nodes there are")
    tables.check(table["ends"], (loop.rounds, types, None), rooms[:, None] + 1, "where chunks end")
    _check(table["ends"].shape[-1] > max(len(block.widths) for block in loop.blocks), "an end for each width")
    _check(np.all(np.diff(table["ends"], axis=-1) >= 0), "the order of chunks")
    _check(all(len(table[name]) == len(capacity) for name in (*_LOOP[4:], *_PAIRS, "pair_span")), "tables of arenas")
    _check(len(table["operands"]) == types, "operands of each type")
    for block, reads, own, room in zip(loop.blocks, loop.reads, table["operands"], rooms.tolist(), strict=True):
        ends = np.array([capacity[place] for place in reads], np.int64)
        if not block.terms:
            tables.check(own, (room, len(reads)), ends, "operands")
            continue
        _check(len(reads) == 1 and own.keys() == {"terms", "first", "count"}, "the tables of a sum")
        tables.check(own["terms"], (block.terms,), ends[0], "terms")
        tables.check(own["first"], (room,), block.terms + 1, "the first term")
        tables.check(own["count"], (room,), (block.longest or block.terms) + 1, "how many terms there are")
    for place in range(len(capacity)):
        _check_edges(
            loop, {name: table[name][place] for name in table if name not in _LOOP[:4]}, place, capacity, tables
        )


def _check_edges(loop: LoopShape, table: Any, place: int, capacity: Sequence[int], tables: _Tables) -> None:
    """The tables of an arena in a loop."""
    rows, edges, pairs = capacity[place], loop.edge_rows[place], loop.pair_rows[place]
    if tables.check_missing(table["edge_of_row"], edges > 0, "edge rows"):
        tables.check(table["edge_of_row"], (rows,), edges + pairs, "the edge row of a row")
    if tables.check_missing(table["row_of_edge"], edges > 0, "edge rows"):
        tables.check(table["row_of_edge"], (edges + pairs,), rows + 1, "the row of an edge row")
    sums = [
        block.terms
        for block, reads, begins in zip(loop.blocks, loop.reads, loop.edges, strict=True)
        if block.terms and reads[0] == place and begins[0] >= 0
    ]
    if tables.check_missing(table["row_of_term"], bool(sums), "edge rows of sums"):
        of_term, row = table["row_of_term"]
        tables.check(of_term, (sum(sums),), edges, "the edge row of a term")
        tables.check(row, (sum(sums),), rows + 1, "the row of a term")
    for name in _PAIRS:
        if tables.check_missing(table[name], pairs > 0, "sums of pairs"):
            tables.check(table[name], (pairs,), edges + pairs, "a pair of edge rows")
    if tables.check_missing(table["pair_span"], pairs > 0, "sums of pairs"):
        tables.check(table["pair_span"], (loop.rounds, len(loop.blocks), 2), pairs + 1, "the sums of pairs of a round")


def _check_steps(plan: PlanArrays, content: Content, tables: _Tables) -> None:
    steps: Any = content.steps
    operands, starts = plan.tables.operands, plan.tables.starts
    _check(len(steps) == len(operands) == len(starts), "tables for each step")
    tables.check(plan.tables.counts, (len(steps),), 2**31, "how many nodes there are")
    most = max((arena.capacity for arena in content.arenas), default=0)
    written = 0
    for step, own, at in zip(steps, operands, starts, strict=True):
        tables.check(own, (2, None) if step.is_sum else (step.kind.rows, step.width), 2**31, "operands")
        _check(np.all((own[..., :1, :] if step.is_sum else own) < most), "operands: a row that is not there")
        if step.is_sum:
            sums = own[..., 1, :]
            _check(sums.max(initial=0) <= step.width <= round_up(own.shape[-1]), "the sums of terms")
            _check(np.all(np.diff(sums, axis=-1) >= 0), "the order of terms")
        tables.check(at, (step.outputs,), most, "where the rows of a step begin")
        written += step.width * step.outputs
    for arena in content.arenas:
        least = len(arena.shared) + arena.inputs
        _check(least <= arena.capacity <= round_up(least + written), "the rows of an arena")


# Kinds


def check_blocks(program: FusedProgram, arenas: Sequence[ArenaShape], tables: Tables) -> None:
    """Refuse a program whose kinds read or write other classes of values than its arenas have."""
    fits = _shared_fit(arenas, tables)
    for _, block, reads, writes in _blocks(program.phases):
        fits &= block.kind.is_variadic == bool(block.terms)
        fits &= [arenas[place].value_class for place in reads] == _read(block.kind, tables)
        fits &= [arenas[place].value_class for place in writes] == _written(block.kind, tables)
    if not fits:
        raise PlanError(f"what was saved does not fit: {CHANGED}")


def check_steps(steps: Sequence[tuple[Kind, SavedStep]], arenas: Sequence[ArenaShape], tables: Tables) -> None:
    """Refuse steps whose kinds read or write other classes of values than there are arenas for."""
    fits = _shared_fit(arenas, tables)
    capacity = {arena.value_class: arena.capacity for arena in arenas}
    for kind, step in steps:
        written = _written(kind, tables)
        fits &= (kind.is_variadic, len(written)) == (step.is_sum, step.outputs)
        fits &= capacity.keys() >= {*_read(kind, tables), *written}
        fits &= all(step.width <= capacity.get(one, 0) for one in written)
    if not fits:
        raise PlanError(f"what was saved does not fit: {CHANGED}")


def _shared_fit(arenas: Sequence[ArenaShape], tables: Tables) -> bool:
    return all(tables.shared_class[number] == arena.value_class for arena in arenas for number in arena.shared)


def _read(kind: Kind, tables: Tables) -> list[int]:
    """The classes of a kind's rows."""
    return [tables.class_of(a) for a, bound in zip(kind.cell.in_avals, kind.binding, strict=True) if bound == ROW]


def _written(kind: Kind, tables: Tables) -> list[int]:
    return [tables.class_of(aval) for aval in kind.cell.out_avals]
