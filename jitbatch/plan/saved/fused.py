"""Programs of the fused executor in saved plans."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.execute.fused.shapes import Block, LoopShape
from jitbatch.execute.fused.targets import TARGETS
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.tables import Tables
from jitbatch.plan.capacity import Names, class_named
from jitbatch.plan.saved.checks import TableChecks, check, classes_read, classes_written, shared_fit
from jitbatch.plan.saved.content import Content
from jitbatch.plan.saved.format import ProgramFormat
from jitbatch.plan.saved.schema import with_names
from jitbatch.plan.saved.values import CHANGED
from jitbatch.util import compat
from jitbatch.util.errors import PlanError

HEADROOM = 16
"""The largest ratio of `Block.longest` to the number of terms. `longest` is the largest reduction with headroom."""


def _save(program: FusedProgram, names: Names) -> Any:
    return with_names(program.phases, names)


def _load(
    content: Content, with_kinds: Callable[[Any], Any], sizes: Sizes, arenas: Sequence[ArenaShape], tables: Tables
) -> FusedProgram:
    program = FusedProgram(with_kinds(content.phases), sizes)
    _check_blocks(program, arenas, tables)
    return program


def _check_sizes(content: Content) -> None:
    """Raises `PlanError` for sizes of phases that no plan has."""
    phases: Any = content.phases
    arenas = content.arenas
    classes = [class_named(arena.value_class) for arena in arenas]
    rows = [len(arena.shared) + arena.inputs for arena in arenas]
    most = max((block.terms for _, block, _, _ in _blocks(phases)), default=0)
    for phase, block, reads, writes in _blocks(phases):
        margin = phase.margin if isinstance(phase, LoopShape) else 0
        check(block.capacity >= 1 and margin >= 0 and block.terms >= 0, "the size of a block")
        check(0 <= block.longest <= HEADROOM * most, "the terms of a sum")
        check(len(reads) == len(block.flows) == block.kind.rows, "the operands of a block")  # type: ignore[attr-defined]
        check(all(0 <= arena_id < len(arenas) for arena_id in (*reads, *writes)), "an arena that is not there")
        check(len(writes) == len(block.starts), "the outputs of a block")
        for arena_id, start in zip(writes, block.starts, strict=True):
            check(start == rows[arena_id], "where the rows of a block begin")
            rows[arena_id] += block.capacity + 2 * margin
    check([arena.capacity for arena in arenas] == [max(count, 1) for count in rows], "the rows of an arena")
    for phase in phases:
        if isinstance(phase, LoopShape):
            _check_loop(phase, [compat.is_float(value_class) for value_class in classes])


def _blocks(phases: Sequence[Any]) -> Iterator[tuple[Any, Block, tuple[int, ...], tuple[int, ...]]]:
    """Yields the phase and block of each type in order, with the arenas of operands and outputs."""
    for phase in phases:
        if isinstance(phase, SingleShape):
            yield phase, phase.block, phase.reads, phase.writes
            continue
        check(len(phase.blocks) == len(phase.reads) == len(phase.writes) == len(phase.edges) >= 1, "a loop")
        for block, reads, writes in zip(phase.blocks, phase.reads, phase.writes, strict=True):
            yield phase, block, reads, writes


def _check_loop(loop: LoopShape, is_float: Sequence[bool]) -> None:
    check(loop.platform in TARGETS, "the platform of a loop")
    count = [1] * len(is_float)
    for block, reads, edges in zip(loop.blocks, loop.reads, loop.edges, strict=True):
        room = block.capacity + 2 * loop.margin
        widths = list(block.widths)
        check(widths and widths == sorted(set(widths)) and 1 <= widths[0] <= widths[-1] <= room, "widths of chunks")
        check(len(edges) == len(reads), "the edges of a block")
        for arena_id, begin, flows in zip(reads, edges, block.flows, strict=True):
            check(begin == (count[arena_id] if is_float[arena_id] and flows else -1), "where edge rows begin")
            count[arena_id] += room if begin >= 0 else 0
    check(list(loop.edge_rows) == [rows if rows > 1 else 0 for rows in count], "the edge rows of a loop")
    check(len(loop.pair_rows) == len(count) and min(loop.pair_rows, default=0) >= 0, "the pairs of a loop")
    check(loop.rounds >= 1, "the rounds of a loop")
    trips = loop.pair_rows if loop.pair_trips is None else loop.pair_trips
    check(len(trips) == len(count), "the chunks of pairs of a loop")
    for rows, pairs, most in zip(loop.edge_rows, loop.pair_rows, trips, strict=True):
        check(0 <= most <= pairs and (rows > 0 or pairs == 0), "the pairs of edge rows")


def _check_tables(content: Content, plan_tables: Any, tables: TableChecks) -> None:
    """Raises `PlanError` if tables do not fit the phases."""
    phases: Any = content.phases
    check(len(plan_tables) == len(phases), "tables for each phase")
    for phase, table in zip(phases, plan_tables, strict=True):
        check_phase: Any = _check_single if isinstance(phase, SingleShape) else _check_loop_tables
        check_phase(phase, table, [arena.capacity for arena in content.arenas], tables)


def _check_single(phase: SingleShape, table: Any, capacity: Sequence[int], tables: TableChecks) -> None:
    block = phase.block
    if not block.terms:
        check(table.keys() == {"operands", "total"}, "the tables of a phase")
        ends = np.array([capacity[arena_id] for arena_id in phase.reads], np.int64)[:, None]
        tables.check(table["operands"], (len(phase.reads), block.capacity), ends, "operands")
    else:
        check(table.keys() == {"terms", "segments", "total"} and len(phase.reads) == 1, "the tables of a sum")
        tables.check(table["terms"], (block.terms,), capacity[phase.reads[0]], "terms")
        tables.check(table["segments"], (block.terms,), block.capacity + 1, "the sums of terms")
        check(np.all(np.diff(table["segments"], axis=-1) >= 0), "the order of terms")
    tables.check(table["total"], (), block.capacity + 1, "how many nodes there are")


_LOOP = ("rounds", "ends", "total", "operands", "edge_of_row", "row_of_edge", "row_of_term")
_PAIRS = ("pair_left", "pair_right", "pair_start")


def _check_loop_tables(loop: LoopShape, table: Any, capacity: Sequence[int], tables: TableChecks) -> None:
    types = len(loop.blocks)
    check(table.keys() == {*_LOOP, *_PAIRS, "pair_span"}, "the tables of a loop")
    rooms = np.array([block.capacity + 2 * loop.margin for block in loop.blocks], np.int64)
    tables.check(table["rounds"], (), loop.rounds + 1, "how many rounds there are")
    tables.check(table["total"], (types,), np.array([b.capacity for b in loop.blocks]) + 1, "how many nodes there are")
    tables.check(table["ends"], (loop.rounds, types, None), rooms[:, None] + 1, "where chunks end")
    check(table["ends"].shape[-1] > max(len(block.widths) for block in loop.blocks), "an end for each width")
    check(np.all(np.diff(table["ends"], axis=-1) >= 0), "the order of chunks")
    check(all(len(table[name]) == len(capacity) for name in (*_LOOP[4:], *_PAIRS, "pair_span")), "tables of arenas")
    check(len(table["operands"]) == types, "operands of each type")
    for block, reads, block_tables, room in zip(
        loop.blocks, loop.reads, table["operands"], rooms.tolist(), strict=True
    ):
        ends = np.array([capacity[arena_id] for arena_id in reads], np.int64)
        if not block.terms:
            tables.check(block_tables, (room, len(reads)), ends, "operands")
            continue
        check(len(reads) == 1 and block_tables.keys() == {"terms", "first", "count"}, "the tables of a sum")
        tables.check(block_tables["terms"], (block.terms,), ends[0], "terms")
        tables.check(block_tables["first"], (room,), block.terms + 1, "the first term")
        tables.check(block_tables["count"], (room,), (block.longest or block.terms) + 1, "how many terms there are")
    for arena_id in range(len(capacity)):
        _check_edges(
            loop, {name: table[name][arena_id] for name in table if name not in _LOOP[:4]}, arena_id, capacity, tables
        )


def _check_edges(loop: LoopShape, table: Any, arena_id: int, capacity: Sequence[int], tables: TableChecks) -> None:
    """Checks the tables of an arena in a loop."""
    rows, edges, pairs = capacity[arena_id], loop.edge_rows[arena_id], loop.pair_rows[arena_id]
    if tables.check_missing(table["edge_of_row"], edges > 0, "edge rows"):
        tables.check(table["edge_of_row"], (rows,), edges + pairs, "the edge row of a row")
    if tables.check_missing(table["row_of_edge"], edges > 0, "edge rows"):
        tables.check(table["row_of_edge"], (edges + pairs,), rows + 1, "the row of an edge row")
    sums = [
        block.terms
        for block, reads, begins in zip(loop.blocks, loop.reads, loop.edges, strict=True)
        if block.terms and reads[0] == arena_id and begins[0] >= 0
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


def _check_blocks(program: FusedProgram, arenas: Sequence[ArenaShape], tables: Tables) -> None:
    """Raises `PlanError` if the kinds of a program do not fit its arenas."""
    fits = shared_fit(arenas, tables)
    for _, block, reads, writes in _blocks(program.phases):
        fits &= block.kind.is_variadic == bool(block.terms)
        fits &= [arenas[arena_id].value_class for arena_id in reads] == classes_read(block.kind, tables)
        fits &= [arenas[arena_id].value_class for arena_id in writes] == classes_written(block.kind, tables)
    if not fits:
        raise PlanError(f"what was saved does not fit: {CHANGED}")


FUSED_FORMAT = ProgramFormat("phases", _save, _load, _check_sizes, _check_tables)
