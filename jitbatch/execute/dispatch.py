"""The dispatch executor: one jitted, vmapped call a step.

A step gathers its operands from the arenas, runs its cell on all rows at once, and writes the results back to
contiguous rows. Everything is plain JAX, so it works eagerly and under jit, grad, vmap, jvp, jacfwd, hessian and
checkpoint. Padding rows repeat a real row; their results are overwritten or never read, and no derivative passes
through them (see `execute/padding`).

An arena begins with the shared values that are needed as rows, then come the inputs, then the results of the steps.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.batch.analysis import Analysis
from jitbatch.execute.lowering import ArenaShape, Lowered, round_up
from jitbatch.execute.segments import gather, segment_reduce
from jitbatch.execute.weight_uses import cut_cell
from jitbatch.ir.cell import Cell
from jitbatch.ir.describe import kind_names, largest
from jitbatch.ir.tables import ROW, Kind, ValueClass
from jitbatch.schedule.policies import Policy
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache
from jitbatch.util.errors import VerifyError

_kernels = Cache(512)
"""Compiled steps of all functions together; each size of one takes 1.4 MiB."""


@dataclass(frozen=True)
class StepShape:
    """The static part of a step: the kind of its nodes, how many rows it computes, padding included, and through which
    row operands a derivative can pass."""

    kind: Kind
    width: int
    flows: tuple[bool, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class StepTables:
    """The dynamic part of the steps.

    Attributes:
        operands: for each step int32 [operands that are rows, width]; for sums int32 [2, terms], the row of each term
            and which sum it belongs to.
        starts: for each step int32 [outputs]; where the rows of each output begin in its arena.
        counts: int32 [steps]; how many of each step's rows are not padding.
    """

    operands: tuple[Any, ...]
    starts: tuple[Any, ...]
    counts: Any


@dataclass(frozen=True)
class DispatchProgram:
    """Steps, one after the other. `arenas` are the value classes of the arenas."""

    steps: tuple[StepShape, ...]
    arenas: tuple[ValueClass, ...]

    @property
    def shared(self) -> set[int]:
        return {bound for step in self.steps for bound in step.kind.binding if bound != ROW}

    def run(self, tables: StepTables, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        by_class = dict(zip(self.arenas, arenas, strict=True))
        owned = not any(compat.is_tracer(a) for a in (*arenas, *shared.values()))
        for number, (step, operands, starts) in enumerate(zip(self.steps, tables.operands, tables.starts, strict=True)):
            kernel = step_kernel(step.kind, step.flows, owned)
            written = tuple(by_class[c] for c in kernel.writes)
            read = tuple(by_class[c] for c in kernel.reads)
            bound = tuple(shared[one] for one in step.kind.binding if one != ROW)
            made = kernel(written, read, operands, starts, bound, tables.counts[number], step.width)
            by_class.update(zip(kernel.writes, made, strict=True))
        return [by_class[c] for c in self.arenas]

    def describe(self, tables: StepTables) -> list[str]:
        names = kind_names(step.kind for step in self.steps)
        lines = []
        for number, (step, starts) in enumerate(zip(self.steps, tables.starts, strict=True)):
            at = ", ".join(str(int(start)) for start in starts) if isinstance(starts, np.ndarray) else "?"
            lines.append((step.width, f"  step {number}: {names[step.kind]} x{step.width} -> rows {at}"))
        return largest(lines)


def lower(analysis: Analysis, policy: Policy) -> Lowered:
    """Steps by a policy; each step's results in contiguous rows, in the order of the nodes in the batch."""
    tables, problem = analysis.tables, analysis.problem
    step_of, flows = policy.assign(problem), analysis.flows
    if passes.verifies():
        problem.verify(step_of)
    value_row = analysis.value_row.copy()
    next_row = analysis.first_free_row
    capacity = next_row.copy()
    order = np.argsort(step_of, kind="stable")
    steps: list[StepShape] = []
    members: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    for begin, end in itertools.pairwise(np.searchsorted(step_of[order], np.arange(step_of.max(initial=-1) + 2))):
        nodes = analysis.nodes[order[begin:end]]
        number = problem.type[order[begin]]
        kind = analysis.types.kinds[number]
        # Padding would repeat effects.
        width = len(nodes) if kind.cell.has_effects else round_up(len(nodes))
        out_starts = []
        for out_class in map(tables.class_of, kind.cell.out_avals):
            out_starts.append(next_row[out_class])
            capacity[out_class] = max(capacity[out_class], next_row[out_class] + width)
            next_row[out_class] += len(nodes)
        analysis.place(value_row, nodes, out_starts)
        steps.append(StepShape(kind, width, flows[number]))
        members.append(nodes)
        starts.append(np.array(out_starts, np.int32))
    analysis.place_merged(value_row)
    operands = tuple(
        _terms(analysis, nodes, value_row, step.width)
        if step.kind.is_variadic
        else _padded(analysis.operand_rows(nodes, value_row, step.kind.rows), step.width)
        for step, nodes in zip(steps, members, strict=True)
    )
    arenas = tuple(
        _arena(c, analysis, int(capacity[c])) for c in sorted(np.flatnonzero(capacity).tolist(), key=tables.class_order)
    )
    program = DispatchProgram(tuple(steps), tuple(tables.classes[arena.value_class] for arena in arenas))
    counts = np.array([len(nodes) for nodes in members], np.int32)
    padded_rows = sum(step.width for step in steps)
    step_tables = StepTables(operands, tuple(starts), counts)
    bound = problem.bound if policy.by_ranks else 0
    return Lowered(program, step_tables, arenas, value_row, len(steps), bound, len(steps), padded_rows)


def _padded(rows: np.ndarray, width: int) -> np.ndarray:
    """Padding repeats the last node, whose values and derivatives are real ones."""
    padding = np.repeat(rows[:, -1:], width - rows.shape[1], axis=1)
    return np.concatenate([rows, padding], axis=1).astype(np.int32)


def _terms(analysis: Analysis, nodes: np.ndarray, value_row: np.ndarray, width: int) -> np.ndarray:
    rows, counts = analysis.terms(nodes, value_row)
    padding = round_up(len(rows)) - len(rows)
    segments = np.append(np.repeat(np.arange(len(nodes)), counts), np.full(padding, width))
    return np.stack([np.append(rows, np.repeat(rows[-1:], padding)), segments]).astype(np.int32)


def _arena(value_class: int, analysis: Analysis, rows: int) -> ArenaShape:
    shared = analysis.shared_rows[value_class]
    count = int(analysis.packed.counts[value_class])
    inputs = round_up(count) if count else 0
    return ArenaShape(value_class, shared, inputs, round_up(max(rows, len(shared) + inputs)))


class StepKernel:
    """A cell over the rows of a step, compiled for each combination of sizes.

    Attributes:
        reads, writes: the value classes whose arenas it reads and writes, each once.
    """

    def __init__(
        self, cell: Cell, is_row: tuple[bool, ...], flows: tuple[bool, ...], operation: str | None, owned: bool
    ):  # fmt: skip
        in_classes = [_class(aval) for aval, row in zip(cell.in_avals, is_row, strict=True) if row]
        out_classes = [_class(aval) for aval in cell.out_avals]
        self.writes = list(dict.fromkeys(out_classes))
        self.reads = [c for c in dict.fromkeys(in_classes) if c not in out_classes]
        write_place = {c: place for place, c in enumerate(self.writes)}
        read_place = {c: place for place, c in enumerate(self.reads)}
        cut = cut_cell(cell, is_row)

        def kernel(
            written: tuple[Any, ...],
            read: tuple[Any, ...],
            operands: Any,
            starts: Any,
            bound: tuple[Any, ...],
            count: Any,
            width: int,
        ) -> Any:
            def arena(value_class: ValueClass) -> Any:
                place = write_place.get(value_class)
                return written[place] if place is not None else read[read_place[value_class]]

            if operation is not None:
                with cell.scope():
                    terms = without_flow(arena(in_classes[0]), *flows)
                    made = [segment_reduce(operation, terms, operands[0], operands[1], width)]
            else:
                read_rows = zip(in_classes, operands, flows, strict=True)
                rows = [without_flow(gather(arena(c), index), flow) for c, index, flow in read_rows]
                with cell.scope():
                    mapped = jax.vmap(cut.forward, in_axes=(0, None, 0), axis_size=width)
                    made, _ = mapped(rows, cut.prologue(bound), jnp.arange(width) < count)
            results = list(written)
            for value_class, start, value in zip(out_classes, starts, made, strict=True):
                place = write_place[value_class]
                results[place] = lax.dynamic_update_slice_in_dim(results[place], value, start, 0)
            return tuple(results)

        kernel.__name__ = kernel.__qualname__ = "jitbatch_" + "".join(c if c.isalnum() else "_" for c in cell.name)
        # In an eager run the arenas are ours alone and are updated in place.
        self._call = jax.jit(kernel, static_argnames="width", donate_argnums=(0,) if owned else ())

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def step_kernel(kind: Kind, flows: tuple[bool, ...], owned: bool) -> StepKernel:
    is_row = tuple(bound == ROW for bound in kind.binding)
    return _kernels.get_or_make(
        (kind.cell, is_row, flows, owned), lambda: StepKernel(kind.cell, is_row, flows, kind.operation, owned)
    )


def _class(aval: Any) -> ValueClass:
    return ValueClass(tuple(aval.shape), aval.dtype)


def verify_plan(plan: Any) -> None:
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
    for number, step in enumerate(static.program.steps):
        operands, starts, count = plan.tables.operands[number], plan.tables.starts[number], plan.tables.counts[number]
        slots = [slot for slot, bound in enumerate(step.kind.binding) if bound == ROW]
        check(0 < count <= step.width, f"step {number} has rows, and not more than its width")
        if step.kind.is_variadic:
            rows, segments = operands
            check(np.all(np.diff(segments) >= 0), f"terms of step {number} are in the order of its sums")
            check(set(range(count)) <= set(segments.tolist()), f"sums of step {number} have terms")
            operands = rows[None]
        else:
            check(operands.shape == (len(slots), step.width), f"step {number} has a row for each operand")
        for slot, rows in zip(slots, operands, strict=True):
            check_read(tables.class_of(step.kind.cell.in_avals[slot]), rows, f"operands of step {number}")
        for out_class, start in zip(map(tables.class_of, step.kind.cell.out_avals), starts, strict=True):
            arena = written[out_class]
            check(start + step.width <= len(arena), f"step {number} writes inside its arenas")
            check(start >= first_free[out_class], f"step {number} writes over no earlier results")
            arena[start : start + step.width] = False
            arena[start : start + count] = True
            first_free[out_class] = start + count
    by_output = static.out_arenas if static.out == "list" else static.out_arenas[0]
    for places, rows in zip(by_output, plan.out_rows, strict=True):
        for place, row in zip(places, rows, strict=True) if static.out == "list" else [(places, rows)]:
            check_read(static.arenas[place].value_class, np.asarray(row), "outputs")
