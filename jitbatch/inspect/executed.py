"""What a plan runs, read back from its tables: steps, the nodes of each, and which node reads which.

A plan keeps what an executor needs and no more. The rest follows from it: a node is known by the row that it writes,
and the table of operand rows says which nodes it reads. So a plan explains itself, also one that was unpickled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.execute.dispatch import DispatchProgram
from jitbatch.execute.fused.program import FusedProgram, SingleShape
from jitbatch.ir.ranks import find_layers
from jitbatch.ir.tables import ROW, Kind
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
    """What a plan runs; of a plan of one shard, by the fused or the dispatch executor."""
    program: Any = plan.static.program
    reading = _Reading(plan)
    if isinstance(program, FusedProgram):
        reading.fused(program, plan.tables)
    else:
        reading.dispatch(program, plan.tables)
    return reading.result()


class _Rows(NamedTuple):
    """Nodes with the rows of their operands, yet to be found: arenas of the operands, rows, and who reads them."""

    arena: int
    rows: np.ndarray
    readers: np.ndarray


class _Reading:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.kinds: dict[Kind, int] = {}
        self.columns: list[Column] = []
        self.steps: list[Step] = []
        self.node_type: list[np.ndarray] = []
        self.node_step: list[np.ndarray] = []
        self.operands: list[_Rows] = []
        self.made_by = [np.full(arena.capacity, -1, np.int64) for arena in plan.static.arenas]
        self.nodes = 0

    def _type(self, kind: Kind) -> int:
        return self.kinds.setdefault(kind, len(self.kinds))

    def _column(self, phase: int, turn: int | None = None) -> int:
        self.columns.append(Column(phase, turn))
        return len(self.columns) - 1

    def _nodes(self, kind: Kind, step: Sequence[int] | np.ndarray) -> np.ndarray:
        """Number new nodes of a type, given the step of each."""
        numbers = self.nodes + np.arange(len(step))
        self.nodes += len(step)
        self.node_type.append(np.full(len(step), self._type(kind)))
        self.node_step.append(np.asarray(step, np.int64))
        return numbers

    def _writes(self, arenas: Sequence[int], starts: Sequence[int], nodes: np.ndarray) -> None:
        for arena, start in zip(arenas, starts, strict=True):
            self.made_by[arena][start + np.arange(len(nodes))] = nodes

    def _reads(self, arenas: Sequence[int], rows: np.ndarray, nodes: np.ndarray) -> None:
        for arena, own in zip(arenas, rows, strict=True):
            self.operands.append(_Rows(arena, own, nodes))

    # Executors

    def dispatch(self, program: DispatchProgram, tables: Any) -> None:
        place = {value_class: arena for arena, value_class in enumerate(program.arenas)}
        classes = self.plan.static.tables

        def arenas(avals: Sequence[Any]) -> list[int]:
            return [place[classes.classes[classes.class_of(aval)]] for aval in avals]

        counts = np.asarray(tables.counts)
        for number, step in enumerate(program.steps):
            kind, count = step.kind, int(counts[number])
            nodes = self._nodes(kind, [number] * count)
            self.steps.append(Step(self._type(kind), self._column(number), int(self.nodes - count), count, step.width))
            self._writes(arenas(kind.cell.out_avals), np.asarray(tables.starts[number]).tolist(), nodes)
            operands = np.asarray(tables.operands[number])
            read = arenas(_row_avals(kind))
            if kind.is_variadic:
                real = operands[1] < count
                self.operands.append(_Rows(read[0], operands[0][real], nodes[operands[1][real]]))
            else:
                self._reads(read, operands[:, :count], nodes)

    def fused(self, program: FusedProgram, tables: Any) -> None:
        for phase, (shape, table) in enumerate(zip(program.phases, tables, strict=True)):
            if isinstance(shape, SingleShape):
                self._single(phase, shape, table)
            else:
                self._loop(phase, shape, table)

    def _single(self, phase: int, shape: SingleShape, table: Any) -> None:
        block, count = shape.block, int(table["total"])
        column = self._column(phase)
        if not count:
            return
        nodes = self._nodes(block.kind, [len(self.steps)] * count)
        self.steps.append(Step(self._type(block.kind), column, int(nodes[0]), count, block.capacity))
        self._writes(shape.writes, block.starts, nodes)
        if block.kind.is_variadic:
            segments = np.asarray(table["segments"])
            real = segments < count
            self.operands.append(_Rows(shape.reads[0], np.asarray(table["terms"])[real], nodes[segments[real]]))
        else:
            self._reads(shape.reads, np.asarray(table["operands"])[:, :count], nodes)

    def _loop(self, phase: int, shape: Any, table: Any) -> None:
        """Nodes are numbered type by type within a round, so that they come after what they read."""
        rounds = int(shape.round_count(table))
        ends = np.asarray(table["ends"])[:rounds]
        counts = np.diff(ends[..., 0], axis=0, append=[shape.margin + np.asarray(table["total"])])
        rows = np.diff(ends, axis=-1)[..., ::-1]
        numbers: list[list[np.ndarray]] = [[] for _ in shape.blocks]
        for turn in range(rounds):
            column = self._column(phase, turn)
            for number, block in enumerate(shape.blocks):
                steps: list[int] = []
                left, first = int(counts[turn, number]), self.nodes
                for width in _widths(block.widths, rows[turn, number]):
                    here = min(width, left)
                    self.steps.append(Step(self._type(block.kind), column, first + len(steps), here, width))
                    steps += [len(self.steps) - 1] * here
                    left -= here
                numbers[number].append(self._nodes(block.kind, steps))
        for number, block in enumerate(shape.blocks):
            nodes = np.concatenate(numbers[number]) if numbers[number] else np.zeros(0, np.int64)
            self._writes(shape.writes[number], [start + shape.margin for start in block.starts], nodes)
            operands = table["operands"][number]
            within = slice(shape.margin, shape.margin + len(nodes))
            if block.kind.is_variadic:
                arity = np.asarray(operands["count"])[within]
                terms = np.asarray(operands["terms"])[: arity.sum()]
                self.operands.append(_Rows(shape.reads[number][0], terms, np.repeat(nodes, arity)))
            else:
                self._reads(shape.reads[number], np.asarray(operands)[within].T, nodes)

    # Together

    def result(self) -> Executed:
        plan = self.plan
        reader = np.concatenate([own.readers for own in self.operands] or [np.zeros(0, np.int64)])
        read = np.concatenate([self.made_by[own.arena][own.rows] for own in self.operands] or [np.zeros(0, np.int64)])
        inner = read >= 0
        return Executed(
            kinds=tuple(self.kinds),
            columns=tuple(self.columns),
            steps=tuple(self.steps),
            node_type=np.concatenate(self.node_type or [np.zeros(0, np.int64)]),
            node_step=np.concatenate(self.node_step or [np.zeros(0, np.int64)]),
            reader=reader[inner],
            read=read[inner],
            outputs=tuple(_outputs(plan, self.made_by)),
        )


def _row_avals(kind: Kind) -> list[Any]:
    return [aval for aval, bound in zip(kind.cell.in_avals, kind.binding, strict=True) if bound == ROW]


def _widths(widths: Sequence[int], rows: np.ndarray) -> Iterator[int]:
    """The widths of the chunks of a round in the order in which they run, the widest first; `rows` says how many rows
    those of each width have together."""
    for width, many in reversed(list(zip(widths, rows.tolist(), strict=False))):
        yield from [width] * (many // width)


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
