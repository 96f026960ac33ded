"""What a plan runs, read back from its tables: steps, the nodes of each, and which node reads which.

A plan keeps what an executor needs and no more. The rest follows from it: a node is known by the row that it writes,
and the table of operand rows says which nodes it reads. So a plan explains itself, also one that was unpickled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.ir.ranks import find_layers
from jitbatch.ir.tables import Kind
from jitbatch.plan.plan import Plan


@dataclass(frozen=True)
class Step:
    """One vmapped execution of a cell.

    Attributes:
        type: the number of the type of its nodes.
        column: when it runs: steps of one column do not wait for each other in a drawing of the batch.
        first, count: its nodes.
        width: how many rows it computes, padding included.
    """

    type: int
    column: int
    first: int
    count: int
    width: int


class Column(NamedTuple):
    """A position in time: a phase, and in a loop a round."""

    phase: int
    round: int | None


@dataclass(frozen=True, eq=False)
class Executed:
    """The steps of a plan and their nodes, which are numbered in the order of execution.

    Attributes:
        kinds: what the nodes of each type compute.
        columns: the positions in time.
        steps: in the order of execution.
        node_type, node_step: int [nodes].
        reader, read: int [edges]; node `reader[e]` reads a value of node `read[e]`.
        outputs: for each sample the nodes that its result comes from; -1 for inputs and shared values.
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
        """The nodes that a sample's result needs, in the order of execution."""
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
        """The nodes as a policy sees them."""
        level = np.zeros(len(self.node_type), np.int64)
        for node, reads in enumerate(self.reads):
            if len(reads):
                level[node] = level[reads].max() + 1
        return Problem(self.node_type, level, self.reader, self.read)

    @cached_property
    def least_steps(self) -> list[int]:
        """For each type, how many steps any schedule needs (see `ir/ranks`)."""
        problem = self.problem
        layer = find_layers(problem.type, problem.level, problem.reader, problem.read)
        return [int(layer[problem.type == number].max(initial=-1)) + 1 for number in range(len(self.kinds))]


def read_back(plan: Plan) -> Executed:
    """What a plan runs; of a plan of one shard, by an executor that runs graphs."""
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
    """For each sample the nodes that its result comes from."""
    static = plan.static
    rows = [np.asarray(own) for own in plan.out_rows]
    if static.out == "list":
        for places, own in zip(static.out_arenas, rows, strict=True):
            yield np.array([made_by[place][row] for place, row in zip(places, own, strict=True)], np.int64)
        return
    nodes = [made_by[place][own] for place, own in zip(static.out_arenas[0], rows, strict=True)]
    if plan.ragged is None:
        yield from np.stack(nodes, axis=1) if nodes else []
        return
    ragged = plan.ragged
    sample = np.where(np.asarray(ragged.mask), np.asarray(ragged.sample), -1)
    for number in range(len(ragged.outline)):
        yield np.concatenate([own[sample == number] for own in nodes])
