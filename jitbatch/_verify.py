"""Checks between the passes of planning; tests switch them on (`_context.verify`).

Each function holds the result of one pass against the documented invariants of what it made, and raises `VerifyError`
naming the one that is broken. Graphs, schedules and steps check themselves (`Graph.verify`, `Problem.verify`,
`_dispatch.verify_plan`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch._analysis import Analysis
from jitbatch._errors import VerifyError
from jitbatch._graph import Graph
from jitbatch._lowering import Lowered
from jitbatch._types import typed


def verify_analysis(analysis: Analysis, graphs: Sequence[Graph]) -> None:
    """Check what types, concatenation, packing and dedupe made of a batch of graphs."""
    for graph in set(graphs):
        typed(graph, analysis.types).verify()

    def check(holds: Any, law: str) -> None:
        if not holds:
            raise VerifyError(f"analysis: {law}")

    batch, leader, kinds = analysis.batch, analysis.leader, analysis.tables.kinds
    nodes = np.arange(len(batch.kind))
    check(np.all(analysis.types.of_kind[batch.kind] >= 0), "every node has a type")
    check(np.all(batch.producer[batch.operands] < np.repeat(nodes, np.diff(batch.operand_start))), "nodes are in order")
    known = batch.producer < 0
    check(np.all((analysis.value_row >= 0) == known), "inputs and shared values have rows, what nodes make has none")
    used = analysis.value_row[known] < analysis.first_free_row[batch.value_class[known]]
    check(np.all(used), "rows of inputs and shared values are in front")

    check(np.all(leader <= nodes) and np.array_equal(leader[leader], leader), "a leader is the first of its kind")
    # A value is known by its row, or by the leader that makes it and which of its outputs it is.
    output = np.arange(len(batch.value_class)) - np.append(batch.first_value, 0)[batch.producer]
    made_by = np.append(leader, -1)[batch.producer]
    identity = np.stack([made_by, np.where(known, analysis.value_row, output), np.where(known, batch.value_class, -1)])
    for node in np.flatnonzero(leader != nodes).tolist():
        first = leader[node]
        check(batch.kind[node] == batch.kind[first], "merged calls have one kind")
        check(kinds[batch.kind[node]].cell.may_merge, "calls with effects or derivative rules are not merged")
        own, other = (batch.operands[batch.operand_start[n] : batch.operand_start[n + 1]] for n in (node, first))
        check(np.array_equal(identity[:, own], identity[:, other]), "merged calls read the same")

    problem = analysis.problem
    check(np.array_equal(analysis.nodes, np.flatnonzero(leader == nodes)), "the nodes are the leaders")
    check(np.all(problem.level[problem.reader] > problem.level[problem.read]), "a node is above what it reads")


def verify_lowered(analysis: Analysis, lowered: Lowered) -> None:
    """Check that every distinct value of a batch has a row of its own, inside its arena."""
    batch = analysis.batch
    capacity = np.full(len(analysis.tables.classes), -1)
    for arena in lowered.arenas:
        capacity[arena.value_class] = arena.capacity
    needed = np.concatenate([batch.operands, batch.outputs])
    if not np.all((lowered.value_row[needed] >= 0) & (lowered.value_row[needed] < capacity[batch.value_class[needed]])):
        raise VerifyError("lowering: what is read lies in its arena")
    is_leader = analysis.leader == np.arange(len(analysis.leader))
    made = np.flatnonzero(np.append(is_leader, False)[batch.producer])
    places = np.stack([batch.value_class[made], lowered.value_row[made]])
    if np.unique(places, axis=1).shape[1] != len(made):
        raise VerifyError("lowering: two values lie in one row")
    if np.any(lowered.value_row[made] < analysis.first_free_row[batch.value_class[made]]):
        raise VerifyError("lowering: what is made lies in a row of an input")
