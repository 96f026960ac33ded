"""The steps, nodes and edges of a plan, read back from its tables.

A plan stores only the tables of its executor. The graph follows from them: the row that a node writes identifies the
node, and the operand rows identify the nodes that it reads. So a plan without graphs can be explained too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.ir.ranks import find_ranks
from jitbatch.ir.tables import Kind
from jitbatch.plan.plan import Plan
from jitbatch.schedule.policies import Policy


@dataclass(frozen=True)
class Step:
    """One vmapped call of a cell.

    Attributes:
        type: the type id of its nodes.
        column: the index of its position in time. Steps of one column are drawn side by side.
        first, count: its first node, and the number of its nodes; the ids are consecutive.
        width: the number of computed rows, padding included.
    """

    type: int
    column: int
    first: int
    count: int
    width: int


class Column(NamedTuple):
    """A position in time: a phase and, in a loop, a round."""

    phase: int
    round: int | None


@dataclass(frozen=True, eq=False)
class Executed:
    """The steps of a plan and their nodes. Node ids follow the order of execution.

    Attributes:
        kinds: the kind of each type.
        columns: the positions in time.
        steps: the steps in the order of execution.
        node_type, node_step: int [nodes]; the type and the step of each node.
        reader, read: int [edges]; node `reader[e]` reads a value of node `read[e]`.
        outputs: for each sample, the nodes that compute its outputs; -1 for inputs and shared values.
    """

    kinds: tuple[Kind, ...]
    columns: tuple[Column, ...]
    steps: tuple[Step, ...]
    node_type: np.ndarray
    node_step: np.ndarray
    reader: np.ndarray
    read: np.ndarray
    outputs: tuple[np.ndarray, ...]

    @cached_property
    def reads(self) -> list[np.ndarray]:
        """The nodes that each node reads."""
        order = np.argsort(self.reader, kind="stable")
        bounds = np.searchsorted(self.reader[order], np.arange(len(self.node_type) + 1))
        return np.split(self.read[order], bounds[1:-1])

    def of_sample(self, sample: int) -> list[int]:
        """Returns the nodes that a sample's outputs depend on, in the order of execution."""
        needed: set[int] = set()
        pending = [int(node) for node in self.outputs[sample] if node >= 0]
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += self.reads[node].tolist()
        return sorted(needed)

    @cached_property
    def problem(self) -> Problem:
        """The scheduling problem of these nodes."""
        return self._problem_of(np.arange(len(self.node_type)))

    @cached_property
    def step_numbers(self) -> list[int]:
        """The step that each launch belongs to: the launches of one type in one column are one step."""
        numbers: dict[tuple[int, int], int] = {}
        return [numbers.setdefault((step.column, step.type), len(numbers)) for step in self.steps]

    def steps_by(self, policy: Policy, only_loops: bool) -> int:
        """Returns the number of steps of this batch under a policy.

        Args:
            policy: the policy.
            only_loops: whether the executor asks policies about the nodes of each loop only. It runs each other type in
                one step.
        """
        if not only_loops:
            return _count(policy, self.problem)
        column = np.array([step.column for step in self.steps], np.int64)[self.node_step]
        phase = np.array([column.phase for column in self.columns], np.int64)[column]
        loops = {column.phase for column in self.columns if column.round is not None}
        steps = 0
        for phase_id in {column.phase for column in self.columns}:
            nodes = np.flatnonzero(phase == phase_id)
            steps += _count(policy, self._problem_of(nodes)) if phase_id in loops else len(set(self.node_type[nodes]))
        return steps

    def _problem_of(self, nodes: np.ndarray) -> Problem:
        """Returns the scheduling problem of some nodes. Values of other nodes are known before they run."""
        position_of = np.full(len(self.node_type), -1, np.int64)
        position_of[nodes] = np.arange(len(nodes))
        inside = (position_of[self.reader] >= 0) & (position_of[self.read] >= 0)
        level = np.zeros(len(nodes), np.int64)
        for position, node in enumerate(nodes):
            read = position_of[self.reads[node]]
            if (read >= 0).any():
                level[position] = level[read[read >= 0]].max() + 1
        _, types = np.unique(self.node_type[nodes], return_inverse=True)
        return Problem(types.astype(np.int64), level, position_of[self.reader[inside]], position_of[self.read[inside]])

    @cached_property
    def least_steps(self) -> list[int]:
        """The least number of steps of any schedule, for each type (see `ir/ranks`)."""
        problem = self.problem
        rank = find_ranks(self.node_type, problem.level, problem.reader, problem.read)
        return [int(rank[self.node_type == type_id].max(initial=-1)) + 1 for type_id in range(len(self.kinds))]


def _count(policy: Policy, problem: Problem) -> int:
    return int(policy.assign(problem).max(initial=-1)) + 1


def read_back(plan: Plan) -> Executed:
    """Reads the steps of a plan back from its tables. The plan has one shard, and its executor runs graphs."""
    kinds: dict[Kind, int] = {}
    columns: dict[Column, int] = {}
    steps: list[Step] = []
    made_by = [np.full(arena.capacity, -1, np.int64) for arena in plan.static.arenas]
    none = np.zeros(0, np.int64)
    readers, reads, node_type, node_step = [none], [none], [none], [none]
    first = 0
    for step in plan.static.program.steps(plan.tables.unpack()):
        kind_id = kinds.setdefault(step.kind, len(kinds))
        column = columns.setdefault(Column(step.phase, step.round), len(columns))
        for arena, rows, nodes in step.reads:
            readers.append(first + nodes)
            reads.append(made_by[arena][rows])
        for arena, rows in step.writes:
            made_by[arena][rows] = first + np.arange(step.count)
        node_type.append(np.full(step.count, kind_id))
        node_step.append(np.full(step.count, len(steps)))
        steps.append(Step(kind_id, column, first, step.count, step.width))
        first += step.count
    reader, read = np.concatenate(readers), np.concatenate(reads)
    return Executed(
        kinds=tuple(kinds),
        columns=tuple(columns),
        steps=tuple(steps),
        node_type=np.concatenate(node_type),
        node_step=np.concatenate(node_step),
        reader=reader[read >= 0],
        read=read[read >= 0],
        outputs=tuple(_outputs(plan, made_by)),
    )


def _outputs(plan: Plan, made_by: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields, for each sample, the nodes that compute its outputs."""
    static = plan.static
    rows = [np.asarray(out_rows) for out_rows in plan.out_rows]
    if static.out == "list":
        for arenas, out_rows in zip(static.out_arenas, rows, strict=True):
            yield np.array([made_by[arena][row] for arena, row in zip(arenas, out_rows, strict=True)], np.int64)
        return
    nodes = [made_by[arena][out_rows] for arena, out_rows in zip(static.out_arenas[0], rows, strict=True)]
    if plan.ragged is None:
        yield from np.stack(nodes, axis=1) if nodes else []
        return
    ragged = plan.ragged
    sample = np.where(np.asarray(ragged.mask), np.asarray(ragged.sample), -1)
    for sample_id in range(len(ragged.outline)):
        yield np.concatenate([arena_nodes[sample == sample_id] for arena_nodes in nodes])
