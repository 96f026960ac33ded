"""Verification between the passes of planning. Tests switch it on (`util/passes`).

Each function checks the documented invariants of one pass's result, and raises a `VerifyError` that names the broken
invariant. Graphs and schedules verify themselves (`Graph.verify`, `Problem.verify`).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.execute.executor import Lowered
from jitbatch.execute.program import Runnable
from jitbatch.ir.ranks import longest_paths
from jitbatch.util.csr import ranges
from jitbatch.util.errors import VerifyError


def verify_analysis(analysis: Analysis) -> None:
    """Checks the result of typing, joining, packing and deduplicating a batch of graphs."""

    def check(holds: Any, law: str) -> None:
        if not holds:
            raise VerifyError(f"analysis: {law}")

    batch, leader, kinds = analysis.batch, analysis.leader, analysis.types.kinds
    nodes = np.arange(len(batch.type))
    value_class = _value_classes(analysis)
    check(np.all((batch.type >= 0) & (batch.type < len(kinds))), "every node has a type")
    check(np.all(value_class >= 0), "every value has a class")
    reader = np.repeat(nodes, np.diff(batch.operand_start))
    read = batch.producer[batch.operands]
    check(np.all(read < reader), "nodes are in order")
    level = longest_paths(nodes, reader[read >= 0], read[read >= 0])
    check(np.all(batch.level >= level), "a node is above what it reads")
    for type_id, kind in enumerate(kinds):
        members = nodes[batch.type == type_id]
        counts = np.diff(batch.operand_start)[members]
        check(np.all(counts > 0 if kind.is_variadic else counts == kind.rows), "nodes have an operand for each row")
        wanted = list(map(analysis.tables.class_of, kind.row_avals))
        classes = value_class[batch.operands[ranges(batch.operand_start[members], counts)]]
        check(
            np.all(classes.reshape(-1, len(wanted)) == wanted if wanted else True), "operands are of the right classes"
        )
    known = batch.producer < 0
    check(np.all((analysis.value_row >= 0) == known), "inputs and shared values have rows, what nodes make has none")
    used = analysis.value_row[known] < analysis.first_free_row[value_class[known]]
    check(np.all(used), "rows of inputs and shared values are in front")

    check(np.all(leader <= nodes) and np.array_equal(leader[leader], leader), "a leader is the first of its kind")
    # The identity of a value is its row, or the leader of its producer and the index of the output.
    output = np.arange(batch.values) - np.append(batch.first_value, 0)[batch.producer]
    made_by = np.append(leader, -1)[batch.producer]
    identity = np.stack([made_by, np.where(known, analysis.value_row, output), np.where(known, value_class, -1)])
    for node in np.flatnonzero(leader != nodes).tolist():
        first = leader[node]
        check(batch.type[node] == batch.type[first], "merged calls have one type")
        check(kinds[batch.type[node]].cell.may_merge, "calls with effects or derivative rules are not merged")
        operands, firsts = (batch.operands[batch.operand_start[n] : batch.operand_start[n + 1]] for n in (node, first))
        check(np.array_equal(identity[:, operands], identity[:, firsts]), "merged calls read the same")

    problem = analysis.problem
    check(np.array_equal(analysis.nodes, np.flatnonzero(leader == nodes)), "the nodes are the leaders")
    check(np.all(problem.level[problem.reader] > problem.level[problem.read]), "a node is above what it reads")


def _value_classes(analysis: Analysis) -> np.ndarray:
    """Returns int [values], the value class of each value; -1 for a value without a class."""
    batch, tables = analysis.batch, analysis.tables
    classes = batch.given_class.copy()
    for type_id, kind in enumerate(analysis.types.kinds):
        for output, aval in enumerate(kind.cell.out_avals):
            classes[batch.first_value[batch.type == type_id] + output] = tables.class_of(aval)
    return classes


def verify_lowered(analysis: Analysis, lowered: Lowered) -> None:
    """Checks that every distinct value of a batch has its own row, inside its arena."""
    batch, value_class = analysis.batch, _value_classes(analysis)
    capacity = np.full(len(analysis.tables.classes), -1)
    for arena in lowered.arenas:
        capacity[arena.value_class] = arena.capacity
    needed = np.concatenate([batch.operands, batch.outputs])
    if not np.all((lowered.value_row[needed] >= 0) & (lowered.value_row[needed] < capacity[value_class[needed]])):
        raise VerifyError("lowering: what is read lies in its arena")
    is_leader = analysis.leader == np.arange(len(analysis.leader))
    written = np.flatnonzero(np.append(is_leader, False)[batch.producer])
    rows = np.stack([value_class[written], lowered.value_row[written]])
    if np.unique(rows, axis=1).shape[1] != len(written):
        raise VerifyError("lowering: two values lie in one row")
    if np.any(lowered.value_row[written] < analysis.first_free_row[value_class[written]]):
        raise VerifyError("lowering: what is made lies in a row of an input")


def verify_steps(plan: Runnable) -> None:
    """Checks that every row is written once and before it is read, and that padding is never read."""

    def check(holds: Any, law: str) -> None:
        if not holds:
            raise VerifyError(f"plan: {law}")

    static = plan.static
    written, computed = ([np.zeros(arena.capacity, bool) for arena in static.arenas] for _ in range(2))

    def check_read(arena: int, rows: np.ndarray, what: str) -> None:
        check(np.all((rows >= 0) & (rows < len(written[arena]))), f"{what} are rows of the arena")
        check(written[arena][rows].all(), f"{what} are written before, and are not padding")

    for arena, rows, is_written in zip(static.arenas, plan.rows, written, strict=True):
        check((0 if rows is None else np.shape(rows)[0]) == arena.inputs, "inputs have the size they are padded to")
        is_written[: len(arena.shared) + arena.inputs] = True
    for step_id, step in enumerate(static.program.steps(plan.tables.unpack())):
        check(step.count <= step.width, f"step {step_id} has no more nodes than rows")
        has_reads = bool(step.reads) if step.kind.is_variadic else len(step.reads) == len(step.kind.row_slots)
        check(has_reads, f"step {step_id} reads an operand for each row of its kind")
        for arena, rows, nodes in step.reads:
            check(
                len(nodes) == len(rows) and np.all(nodes < step.count), f"operands of step {step_id} are of its nodes"
            )
            check_read(arena, rows, f"operands of step {step_id}")
        for arena, rows in step.writes:
            check(np.all((rows >= 0) & (rows < len(written[arena]))), f"step {step_id} writes inside its arenas")
            check(not computed[arena][rows].any(), f"step {step_id} writes over no earlier results")
            written[arena][rows] = computed[arena][rows] = True
    for arena, rows in _output_rows(plan):
        check_read(arena, rows, "outputs")


def _output_rows(plan: Runnable) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the rows of the outputs that are not padding, with their arenas."""
    static = plan.static
    if static.out == "list":
        for arenas, rows in zip(static.out_arenas, plan.out_rows, strict=True):
            yield from zip(arenas, map(np.asarray, rows), strict=True)
        return
    is_item = slice(None) if plan.ragged is None else np.asarray(plan.ragged.mask)
    for arena, rows in zip(static.out_arenas[0], plan.out_rows, strict=True):
        outputs = np.asarray(rows)[is_item]
        if static.out == "rows":
            value_class = static.arenas[arena].value_class
            outputs = outputs[: sum(graph.out_classes.count(value_class) for graph in plan.graphs)]
        yield arena, outputs
