"""From an analysed batch to a plan: steps, and a row in an arena for every value.

Values of one class (shape and dtype) live in one arena. An arena begins with the shared values that are needed as rows,
then come the inputs, then the results of the steps, each step's in contiguous rows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jitbatch._analysis import Analysis, analyse
from jitbatch._errors import OutputError, VerifyError
from jitbatch._graph import ROW, Graph, Kind, Tables
from jitbatch._inputs import pad_rows
from jitbatch._schedule import POLICIES


def round_up(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: sizes repeat, and at most a third of a size is padding."""
    if count <= 2:
        return max(count, 1)
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


@dataclass(frozen=True)
class StepShape:
    """The static part of a step: the kind of its nodes and how many rows it computes, padding included."""

    kind: Kind
    width: int


@dataclass(frozen=True)
class ArenaShape:
    """The static part of an arena: its class, the shared values it begins with, how many input rows, and its size."""

    value_class: int
    shared: tuple[int, ...]
    inputs: int
    capacity: int


@dataclass(frozen=True, eq=False)
class PlanStatic:
    """What a program is compiled for: everything in a plan but its integer tables and input rows."""

    tables: Tables
    owner: Any
    shared_key: Any
    arenas: tuple[ArenaShape, ...]
    steps: tuple[StepShape, ...]
    out: str
    out_trees: tuple[Any, ...]
    out_arenas: tuple[tuple[int, ...], ...]
    summary: "Summary"

    def _identity(self) -> tuple[Any, ...]:
        return (self.owner, self.shared_key, self.arenas, self.steps, self.out, self.out_trees, self.out_arenas)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, PlanStatic) and self.tables is other.tables and self._identity() == other._identity()

    @cached_property
    def _hash(self) -> int:
        return hash((id(self.tables), self._identity()))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Summary:
    """What planning did, in numbers."""

    samples: int
    nodes: int
    distinct: int
    levels: int
    types: int
    steps: int
    rows: int
    padded_rows: int


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Plan:
    """The analysis of one batch: which calls run together, on which rows.

    Made by `f.plan(...)` and run by `f.batch(shared, plan)`. A plan is a pytree: its leaves are small integer tables
    and the batch's input rows, which are constants; the rest is static.

    Attributes:
        inputs: for each arena its input rows, padded to the size in its `ArenaShape`.
        operands: for each step int32 [operands that are rows, width].
        starts: for each step int32 [outputs]; where the rows of each output begin in its arena.
        counts: int32 [steps]; how many of each step's rows are not padding.
        out_rows: for each output of the stacked result int32 [samples], or for `out="list"` for each sample
            int32 [outputs].
    """

    inputs: tuple[Any, ...]
    operands: tuple[Any, ...]
    starts: tuple[Any, ...]
    counts: Any
    out_rows: tuple[Any, ...]
    static: PlanStatic

    def tree_flatten(self) -> tuple[tuple[Any, ...], PlanStatic]:
        return (self.inputs, self.operands, self.starts, self.counts, self.out_rows), self.static

    @classmethod
    def tree_unflatten(cls, static: PlanStatic, children: Sequence[Any]) -> "Plan":
        return cls(*children, static)  # type: ignore[misc]

    def __repr__(self) -> str:
        s = self.static.summary
        return (
            f"Plan({s.samples} samples: {s.nodes} nodes, {s.distinct} distinct, {s.levels} levels, {s.types} types "
            f"-> {s.steps} steps, mean width {s.rows / max(s.steps, 1):.1f}, "
            f"{100 * (1 - s.rows / max(s.padded_rows, 1)):.0f}% padding)"
        )

    def __str__(self) -> str:
        lines = [repr(self)]
        for number, (step, starts) in enumerate(zip(self.static.steps, self.starts, strict=True)):
            at = ", ".join(str(int(start)) for start in starts) if isinstance(starts, np.ndarray) else "?"
            lines.append(f"  step {number}: {step.kind.cell.name} x{step.width} -> rows {at}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Options:
    """How a batch is planned."""

    policy: str
    dedupe: bool
    out: str


def make_plan(
    owner: Any, shared_key: Any, graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], options: Options,
    verify: bool = False,
) -> Plan:  # fmt: skip
    """Plan a batch of at least one sample.

    Args:
        owner: the function that the plan is for.
        shared_key: the description of its shared arguments.
        graphs: one for each sample.
        leaves: the array leaves of each sample.
    """
    tables = graphs[0].tables
    out_trees, out_classes = _outputs(graphs, tables, options.out)
    analysis = analyse(graphs, leaves, options.dedupe)
    problem = analysis.problem
    step_of = POLICIES[options.policy](problem)
    if verify:
        problem.verify(step_of)

    # Rows: each step's outputs are contiguous, in the order of the nodes in the batch.
    value_row = analysis.value_row.copy()
    next_row = analysis.first_free_row
    capacity = next_row.copy()
    order = np.argsort(step_of, kind="stable")
    steps: list[StepShape] = []
    members: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    for begin, end in itertools.pairwise(np.searchsorted(step_of[order], np.arange(step_of.max(initial=-1) + 2))):
        nodes = analysis.nodes[order[begin:end]]
        kind = analysis.types.kinds[problem.type[order[begin]]]
        # Padding would repeat effects.
        width = len(nodes) if kind.cell.has_effects else round_up(len(nodes))
        out_starts = []
        for out_class in map(tables.class_of, kind.cell.out_avals):
            out_starts.append(next_row[out_class])
            capacity[out_class] = max(capacity[out_class], next_row[out_class] + width)
            next_row[out_class] += len(nodes)
        analysis.place(value_row, nodes, [start + np.arange(len(nodes)) for start in out_starts])
        steps.append(StepShape(kind, width))
        members.append(nodes)
        starts.append(np.array(out_starts, np.int32))
    analysis.place_merged(value_row)
    operands = tuple(
        _padded(analysis.operand_rows(step.kind, nodes, value_row), step.width)
        for step, nodes in zip(steps, members, strict=True)
    )

    used = np.flatnonzero(capacity)
    arenas = tuple(_arena(int(c), analysis, int(capacity[c])) for c in used)
    arena_of = {arena.value_class: number for number, arena in enumerate(arenas)}
    inputs = tuple(pad_rows(analysis.packed.rows.get(a.value_class), a.inputs) for a in arenas)
    if options.out == "stack":
        outputs = value_row[analysis.batch.outputs].reshape(len(graphs), -1).T
        out_rows = tuple(np.ascontiguousarray(rows, np.int32) for rows in outputs)
    else:
        edges = np.cumsum([len(graph.outputs) for graph in graphs])[:-1]
        out_rows = tuple(rows.astype(np.int32) for rows in np.split(value_row[analysis.batch.outputs], edges))
    static = PlanStatic(
        tables=tables,
        owner=owner,
        shared_key=shared_key,
        arenas=arenas,
        steps=tuple(steps),
        out=options.out,
        out_trees=out_trees,
        out_arenas=tuple(tuple(arena_of[c] for c in one) for one in out_classes),
        summary=Summary(
            samples=len(graphs),
            nodes=len(analysis.leader),
            distinct=len(analysis.nodes),
            levels=int(problem.level.max(initial=-1)) + 1,
            types=len(analysis.types.kinds),
            steps=len(steps),
            rows=len(analysis.nodes),
            padded_rows=sum(step.width for step in steps),
        ),
    )
    counts = np.array([len(nodes) for nodes in members], np.int32)
    plan = Plan(inputs, operands, tuple(starts), counts, out_rows, static)
    if verify:
        verify_plan(plan)
    return plan


def _padded(rows: np.ndarray, width: int) -> np.ndarray:
    """Padding repeats the last node, whose values and derivatives are real ones."""
    padding = np.repeat(rows[:, -1:], width - rows.shape[1], axis=1)
    return np.concatenate([rows, padding], axis=1).astype(np.int32)


def _arena(value_class: int, analysis: Analysis, rows: int) -> ArenaShape:
    shared = analysis.shared_rows[value_class]
    count = int(analysis.packed.counts[value_class])
    inputs = round_up(count) if count else 0
    return ArenaShape(value_class, shared, inputs, round_up(max(rows, len(shared) + inputs)))


def _outputs(graphs: Sequence[Graph], tables: Tables, out: str) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """The result trees and the classes of their leaves: one for all samples, or one for each."""
    if out == "list":
        return tuple(g.out_tree for g in graphs), [g.out_classes for g in graphs]
    first = graphs[0]
    for index, graph in enumerate(graphs):
        if graph is not first and (graph.out_tree, graph.out_classes) != (first.out_tree, first.out_classes):
            raise OutputError(
                f"sample {index} has the result {_describe_result(graph, tables)}, but sample 0 has "
                f'{_describe_result(first, tables)}: they cannot be stacked. Use out="list", or return equal shapes'
            )
    return (first.out_tree,), [first.out_classes]


def _describe_result(graph: Graph, tables: Tables) -> str:
    return str(graph.out_tree.unflatten([str(tables.classes[c]) for c in graph.out_classes])).replace("'", "")


def verify_plan(plan: Plan) -> None:
    """Check that every row is written before it is read, and that padding is never read."""

    def check(holds: Any, law: str) -> None:
        if not holds:
            raise VerifyError(f"plan: {law}")

    static, tables = plan.static, plan.static.tables
    written = {arena.value_class: np.zeros(arena.capacity, bool) for arena in static.arenas}

    def check_read(value_class: int, rows: np.ndarray, what: str) -> None:
        arena = written[value_class]
        check(np.all((rows >= 0) & (rows < len(arena))), f"{what} are rows of the arena")
        check(arena[rows].all(), f"{what} are written before, and are not padding")

    first_free = {}
    for arena, rows in zip(static.arenas, plan.inputs, strict=True):
        check((0 if rows is None else np.shape(rows)[0]) == arena.inputs, "inputs have the size they are padded to")
        first_free[arena.value_class] = 0
        written[arena.value_class][: len(arena.shared) + arena.inputs] = True
    for number, step in enumerate(static.steps):
        operands, starts, count = plan.operands[number], plan.starts[number], plan.counts[number]
        slots = [slot for slot, bound in enumerate(step.kind.binding) if bound == ROW]
        check(operands.shape == (len(slots), step.width), f"step {number} has a row for each operand")
        check(0 < count <= step.width, f"step {number} has rows, and not more than its width")
        for slot, rows in zip(slots, operands, strict=True):
            check_read(tables.class_of(step.kind.cell.in_avals[slot]), rows, f"operands of step {number}")
        for out_class, start in zip(map(tables.class_of, step.kind.cell.out_avals), starts, strict=True):
            arena = written[out_class]
            check(start + step.width <= len(arena), f"step {number} writes inside its arenas")
            check(start >= first_free[out_class], f"step {number} writes over no earlier results")
            arena[start : start + step.width] = False
            arena[start : start + count] = True
            first_free[out_class] = start + count
    for places, rows in zip(_by_output(static), plan.out_rows, strict=True):
        for place, row in zip(places, rows, strict=True) if static.out == "list" else [(places, rows)]:
            check_read(static.arenas[place].value_class, np.asarray(row), "outputs")


def _by_output(static: PlanStatic) -> Sequence[Any]:
    return static.out_arenas if static.out == "list" else static.out_arenas[0]
