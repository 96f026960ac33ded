"""From the graphs of a batch to a plan: types, merged calls, steps, and a row in an arena for every value.

Values of one class (shape and dtype) live in one arena. An arena begins with the shared values that are needed as rows,
then come the inputs, then the results of the steps, each step's in contiguous rows. Everything here works on whole
arrays; loops run over types and steps, never over nodes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jitbatch._concat import Batch, concatenate, ranges
from jitbatch._dedupe import merge_calls
from jitbatch._errors import OutputError, VerifyError
from jitbatch._graph import ROW, Graph, Kind, Tables
from jitbatch._inputs import pack_inputs, pad_rows
from jitbatch._schedule import POLICIES, Problem


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
        out_rows: for each output of the stacked result int32 [samples], or for `out="list"` for each sample
            int32 [outputs].
    """

    inputs: tuple[Any, ...]
    operands: tuple[Any, ...]
    starts: tuple[Any, ...]
    out_rows: tuple[Any, ...]
    static: PlanStatic

    def tree_flatten(self) -> tuple[tuple[Any, ...], PlanStatic]:
        return (self.inputs, self.operands, self.starts, self.out_rows), self.static

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
    batch = concatenate(graphs)
    kinds, type_of = _types(batch.kind, tables)
    shared_rows, shared_position = _shared_rows(kinds, graphs, batch, tables)
    packed = pack_inputs(graphs, leaves, batch, tables, options.dedupe)

    # A row in its arena for every value that is not computed, and a key that is equal for equal values.
    value_row = np.full(len(batch.value_class), -1, np.int64)
    value_row[batch.shared_values] = shared_position[batch.shared_numbers]
    shared_count = np.array([len(rows) for rows in shared_rows])
    value_row[batch.input_values] = packed.row + shared_count[batch.value_class[batch.input_values]]
    classes = len(tables.classes)
    value_key = np.where(value_row >= 0, value_row * classes + batch.value_class, 0)
    is_computed = batch.producer >= 0
    value_key[is_computed] = value_key.max(initial=0) + 1 + np.arange(is_computed.sum())

    if options.dedupe:
        leader, value_key = merge_calls(
            batch.kind, batch.level, batch.operand_start, batch.operands, batch.first_value,
            np.array([len(made) for made in tables.kind_classes]),
            np.array([not kind.cell.has_effects for kind in tables.kinds.entries], bool),
            value_key,
        )  # fmt: skip
    else:
        leader = np.arange(len(type_of))

    # The distinct nodes, renumbered, are what is scheduled.
    distinct = np.flatnonzero(leader == np.arange(len(leader)))
    renumber = np.full(len(leader), -1)
    renumber[distinct] = np.arange(len(distinct))
    counts = np.diff(batch.operand_start)[distinct]
    edge_values = batch.operands[ranges(batch.operand_start[distinct], counts)]
    edge_read = batch.producer[edge_values]
    edge_reader = np.repeat(np.arange(len(distinct)), counts)
    inner = edge_read >= 0
    problem = Problem(
        type=type_of[distinct],
        level=batch.level[distinct],
        reader=edge_reader[inner],
        read=renumber[leader[edge_read[inner]]],
    )
    step_of = POLICIES[options.policy](problem)
    if verify:
        problem.verify(step_of)

    # Rows: each step's outputs are contiguous, in the order of the nodes in the batch.
    next_row = shared_count + packed.counts
    capacity = next_row.copy()
    order = np.argsort(step_of, kind="stable")
    step_edges = np.searchsorted(step_of[order], np.arange(step_of.max(initial=-1) + 2))
    steps: list[StepShape] = []
    members: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    for begin, end in itertools.pairwise(step_edges):
        nodes = order[begin:end]
        kind = kinds[problem.type[nodes[0]]]
        width = round_up(len(nodes))
        step_starts = []
        for output, out_class in enumerate(tables.class_of(aval) for aval in kind.cell.out_avals):
            value_row[batch.first_value[distinct[nodes]] + output] = next_row[out_class] + np.arange(len(nodes))
            step_starts.append(next_row[out_class])
            capacity[out_class] = max(capacity[out_class], next_row[out_class] + width)
            next_row[out_class] += len(nodes)
        steps.append(StepShape(kind, width))
        members.append(distinct[nodes])
        starts.append(np.array(step_starts, np.int32))

    # Merged values lie where their leaders' do; then every operand is a row.
    merged = np.flatnonzero(leader[batch.producer[is_computed]] != batch.producer[is_computed])
    merged = np.flatnonzero(is_computed)[merged]
    of = batch.producer[merged]
    value_row[merged] = value_row[batch.first_value[leader[of]] + merged - batch.first_value[of]]
    operands = [
        _operand_rows(step, nodes, batch, tables, value_row, shared_position)
        for step, nodes in zip(steps, members, strict=True)
    ]

    used = np.flatnonzero(capacity)
    arena_of = np.full(classes, -1)
    arena_of[used] = np.arange(len(used))
    arenas = tuple(
        ArenaShape(int(c), shared_rows[c], round_up(int(packed.counts[c])) if packed.counts[c] else 0, 0) for c in used
    )
    arenas = tuple(
        ArenaShape(
            a.value_class, a.shared, a.inputs, round_up(max(int(capacity[a.value_class]), len(a.shared) + a.inputs))
        )
        for a in arenas
    )
    inputs = tuple(pad_rows(packed.rows.get(a.value_class), a.inputs) for a in arenas)
    if options.out == "stack":
        outputs = value_row[batch.outputs].reshape(len(graphs), -1).T
        out_rows = tuple(np.ascontiguousarray(rows, np.int32) for rows in outputs)
    else:
        edges = np.cumsum([len(graph.outputs) for graph in graphs])[:-1]
        out_rows = tuple(rows.astype(np.int32) for rows in np.split(value_row[batch.outputs], edges))
    summary = Summary(
        samples=len(graphs),
        nodes=len(type_of),
        distinct=len(distinct),
        levels=int(batch.level.max(initial=-1)) + 1,
        types=len(np.unique(type_of)),
        steps=len(steps),
        rows=len(distinct),
        padded_rows=sum(step.width for step in steps),
    )
    static = PlanStatic(
        tables=tables,
        owner=owner,
        shared_key=shared_key,
        arenas=arenas,
        steps=tuple(steps),
        out=options.out,
        out_trees=out_trees,
        out_arenas=tuple(tuple(int(arena_of[c]) for c in one) for one in out_classes),
        summary=summary,
    )
    plan = Plan(inputs, tuple(operands), tuple(starts), out_rows, static)
    if verify:
        verify_plan(plan)
    return plan


def _types(kind_of: np.ndarray, tables: Tables) -> tuple[list[Kind], np.ndarray]:
    """The types of a batch in canonical order, and the type of each node.

    A type is a kind, but for one thing: where some calls of a cell pass a shared value (a learned initial state) and
    others a value of the sample, all pass a row, so that they are one bucket.
    """
    present = np.unique(kind_of)
    rows: dict[Any, list[bool]] = {}
    for number in present:
        kind = tables.kinds[number]
        is_row = rows.setdefault(kind.cell, [False] * len(kind.binding))
        for slot, bound in enumerate(kind.binding):
            is_row[slot] = is_row[slot] or bound == ROW
    merged = {}
    for number in present:
        kind = tables.kinds[number]
        binding = (ROW if is_row else bound for bound, is_row in zip(kind.binding, rows[kind.cell], strict=True))
        merged[number] = Kind(kind.cell, tuple(binding))
    kinds = sorted(set(merged.values()), key=lambda kind: (kind.cell.digest, kind.binding))
    place = {kind: position for position, kind in enumerate(kinds)}
    type_of_kind = np.zeros(len(tables.kinds), np.int64)
    for number, kind in merged.items():
        type_of_kind[number] = place[kind]
    return kinds, type_of_kind[kind_of]


def _operand_rows(
    step: StepShape,
    nodes: np.ndarray,
    batch: Batch,
    tables: Tables,
    value_row: np.ndarray,
    shared_position: np.ndarray,
) -> np.ndarray:
    """int32 [row operands, width]; padding repeats the last node, whose values and derivatives are real ones."""
    rows = np.empty((step.kind.rows, len(nodes)), np.int64)
    kind_of = batch.kind[nodes]
    for number in np.unique(kind_of):
        here = np.flatnonzero(kind_of == number)
        own = tables.kinds[number].binding
        column = row = 0
        first = batch.operand_start[nodes[here]]
        for bound, own_bound in zip(step.kind.binding, own, strict=True):
            if bound == ROW:
                if own_bound == ROW:
                    rows[row, here] = value_row[batch.operands[first + column]]
                    column += 1
                else:
                    rows[row, here] = shared_position[own_bound]
                row += 1
    padding = np.repeat(rows[:, -1:], step.width - len(nodes), axis=1)
    return np.concatenate([rows, padding], axis=1).astype(np.int32)


def _shared_rows(
    kinds: Sequence[Kind], graphs: Sequence[Graph], batch: Batch, tables: Tables
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """For each class the shared values that are needed as rows, and the row of each shared value."""
    needed = set(np.unique(batch.shared_numbers).tolist())
    binding_of = {kind.cell: kind.binding for kind in kinds}
    for number in np.unique(batch.kind):
        kind = tables.kinds[number]
        merged = binding_of[kind.cell]
        needed.update(own for own, now in zip(kind.binding, merged, strict=True) if own != ROW and now == ROW)
    rows: list[tuple[int, ...]] = [()] * len(tables.classes)
    position = np.full(len(tables.shared), -1, np.int64)
    for number in sorted(needed):
        in_class = tables.shared_class[number]
        position[number] = len(rows[in_class])
        rows[in_class] += (number,)
    return rows, position


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
    """Check that every row is written before it is read, and that padding is overwritten or never read."""

    def check(holds: Any, law: str) -> None:
        if not holds:
            raise VerifyError(f"plan: {law}")

    tables = plan.static.tables
    written = {a.value_class: np.zeros(a.capacity, bool) for a in plan.static.arenas}
    for arena, rows in zip(plan.static.arenas, plan.inputs, strict=True):
        count = 0 if rows is None else len(rows)
        check(count == arena.inputs, "inputs have the size they are padded to")
        written[arena.value_class][: len(arena.shared) + arena.inputs] = True
    for number, (step, operands, starts) in enumerate(zip(plan.static.steps, plan.operands, plan.starts, strict=True)):
        slots = [slot for slot, bound in enumerate(step.kind.binding) if bound == ROW]
        check(operands.shape == (len(slots), step.width), f"step {number} has a row for each operand")
        for slot, rows in zip(slots, operands, strict=True):
            arena = written[tables.class_of(step.kind.cell.in_avals[slot])]
            check(arena[rows].all(), f"step {number} reads rows that are written")
        for aval, start in zip(step.kind.cell.out_avals, starts, strict=True):
            arena = written[tables.class_of(aval)]
            check(start + step.width <= len(arena), f"step {number} writes inside its arenas")
            arena[start : start + step.width] = True
