"""The dispatch executor: one jitted, vmapped call per step.

A step gathers its operands from the arenas, runs its cell on all rows at once, and writes the results to contiguous
rows. The executor is plain JAX, so it works eagerly and under jit, grad, vmap, jvp, jacfwd, hessian and checkpoint.
Padding repeats a real row; its results are overwritten or never read, and no derivative passes through it (see
`execute/padding`).

An arena holds first the shared values that are rows, then the input rows, then the results of the steps.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.batch.analysis import Analysis
from jitbatch.execute.executor import Executor, Lowered, SizeRequest
from jitbatch.execute.memory import ProgramMemory, of_calls
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.segments import gather, segment_reduce
from jitbatch.execute.steps import Read, Step, Write, operand_reads
from jitbatch.execute.weight_uses import cut_cell
from jitbatch.ir.describe import kind_names, largest
from jitbatch.ir.tables import Kind, Tables, ValueClass
from jitbatch.schedule.policies import Policy
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache
from jitbatch.util.packed import pack
from jitbatch.util.rounding import round_up

_kernels = Cache(512)
"""The compiled steps of all functions. Each compiled size of a step takes 1.4 MiB."""


@dataclass(frozen=True)
class StepShape:
    """The static part of a step.

    Attributes:
        kind: the kind of its nodes.
        width: the number of computed rows, padding included.
        flows: for each row operand, whether a derivative can pass through it (activity analysis).
    """

    kind: Kind
    width: int
    flows: tuple[bool, ...]


class StepTables(TypedDict):
    """The dynamic part of the steps.

    Attributes:
        operands: for each step, int32 [row operands, width]; for a reduction, int32 [2, terms], the row of each term
            and the index of its reduction.
        starts: for each step, int32 [outputs]; the first row of each output in its arena.
        counts: int32 [steps]; the number of rows of each step without padding.
    """

    operands: tuple[Any, ...]
    starts: tuple[Any, ...]
    counts: Any


@dataclass(frozen=True)
class DispatchProgram:
    """A sequence of steps.

    Attributes:
        step_shapes: the static parts of the steps.
        arenas: the value classes of the arenas.
    """

    step_shapes: tuple[StepShape, ...]
    arenas: tuple[ValueClass, ...]

    @property
    def shared(self) -> set[int]:
        return {shared_id for step in self.step_shapes for shared_id in step.kind.shared_ids}

    @property
    def sizes(self) -> None:
        return None

    def run(self, tables: StepTables, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        by_class = dict(zip(self.arenas, arenas, strict=True))
        owned = not any(compat.is_tracer(a) for a in (*arenas, *shared.values()))
        counts = tables["counts"]
        for step_id, (step, operands, starts) in enumerate(
            zip(self.step_shapes, tables["operands"], tables["starts"], strict=True)
        ):
            kernel = step_kernel(step.kind, step.flows, owned)
            written = tuple(by_class[c] for c in kernel.writes)
            read = tuple(by_class[c] for c in kernel.reads)
            bound = tuple(shared[shared_id] for shared_id in step.kind.shared_ids)
            outputs = kernel(written, read, operands, starts, bound, counts[step_id], step.width)
            by_class.update(zip(kernel.writes, outputs, strict=True))
        return [by_class[c] for c in self.arenas]

    def steps(self, tables: StepTables) -> Iterator[Step]:
        arena_of = {value_class: arena for arena, value_class in enumerate(self.arenas)}
        for step_id, step in enumerate(self.step_shapes):
            kind, count = step.kind, int(tables["counts"][step_id])
            starts, operands = np.asarray(tables["starts"][step_id]), np.asarray(tables["operands"][step_id])
            reads = tuple(arena_of[_class(aval)] for aval in kind.row_avals)
            if kind.is_variadic:
                is_term = operands[1] < count
                step_reads = (Read(reads[0], operands[0][is_term], operands[1][is_term]),)
            else:
                step_reads = operand_reads(reads, operands[:, :count])
            yield Step(
                kind=kind,
                phase=step_id,
                round=None,
                count=count,
                width=step.width,
                writes=tuple(
                    Write(arena_of[_class(aval)], start + np.arange(count))
                    for aval, start in zip(kind.cell.out_avals, starts.tolist(), strict=True)
                ),
                reads=step_reads,
            )

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[ValueClass]) -> ProgramMemory:
        return ProgramMemory(tuple(of_calls(step.kind, step.width) for step in self.step_shapes), sum(arena_sizes))

    def describe(self, tables: StepTables) -> list[str]:
        names = kind_names(step.kind for step in self.step_shapes)
        lines = []
        for step_id, (step, starts) in enumerate(zip(self.step_shapes, tables["starts"], strict=True)):
            at = ", ".join(str(int(start)) for start in starts) if isinstance(starts, np.ndarray) else "?"
            lines.append((step.width, f"  step {step_id}: {names[step.kind]} x{step.width} -> rows {at}"))
        return largest(lines)

    def changes(self, before: "DispatchProgram", tables: Tables) -> Iterator[str]:
        known = {(step.kind.cell, step.width) for step in before.step_shapes}
        for cell, width in dict.fromkeys((step.kind.cell, step.width) for step in self.step_shapes):
            widths = sorted(w for c, w in known if c == cell)
            if widths and width not in widths:
                yield f"`{cell.name}` runs {width} wide, and ran {', '.join(map(str, widths))} wide"


def lower(analysis: Analysis, policy: Policy, request: SizeRequest) -> Lowered:
    """Lowers a batch to steps. The policy assigns nodes to steps.

    The results of a step are in contiguous rows, in the order of the nodes in the batch. `request` is ignored: the
    program has the sizes of its batch.
    """
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
        type_id = problem.type[order[begin]]
        kind = analysis.types.kinds[type_id]
        # Padding would repeat effects.
        width = len(nodes) if kind.cell.has_effects else round_up(len(nodes))
        out_starts = []
        for out_class in map(tables.class_of, kind.cell.out_avals):
            out_starts.append(next_row[out_class])
            capacity[out_class] = max(capacity[out_class], next_row[out_class] + width)
            next_row[out_class] += len(nodes)
        analysis.place(value_row, nodes, out_starts)
        steps.append(StepShape(kind, width, flows[type_id]))
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
    step_tables = StepTables(operands=operands, starts=tuple(starts), counts=counts)
    bound = problem.bound if policy.by_ranks else 0
    return Lowered(program, pack(step_tables), arenas, value_row, len(steps), bound, len(steps), padded_rows)


def _padded(rows: np.ndarray, width: int) -> np.ndarray:
    """Pads operand rows to the width of a step. Padding repeats the last node."""
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
    """The jitted function of a step. It is compiled for each combination of sizes.

    Attributes:
        reads: the value classes of the arenas that it only reads, each once.
        writes: the value classes of the arenas that it writes, each once.
    """

    def __init__(self, kind: Kind, flows: tuple[bool, ...], owned: bool):
        cell = kind.cell
        in_classes = list(map(_class, kind.row_avals))
        out_classes = [_class(aval) for aval in cell.out_avals]
        self.writes = list(dict.fromkeys(out_classes))
        self.reads = [c for c in dict.fromkeys(in_classes) if c not in out_classes]
        index_of_written = {c: index for index, c in enumerate(self.writes)}
        index_of_read = {c: index for index, c in enumerate(self.reads)}
        cut = cut_cell(cell, kind.vmapped)

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
                index = index_of_written.get(value_class)
                return written[index] if index is not None else read[index_of_read[value_class]]

            if kind.operation is not None:
                with cell.scope():
                    terms = without_flow(arena(in_classes[0]), *flows)
                    outputs = [segment_reduce(kind.operation, terms, operands[0], operands[1], width)]
            else:
                read_rows = zip(in_classes, operands, flows, strict=True)
                rows = [without_flow(gather(arena(c), index), flow) for c, index, flow in read_rows]
                with cell.scope():
                    mapped = jax.vmap(cut.forward, in_axes=(0, None, 0), axis_size=width)
                    outputs, _ = mapped(rows, cut.prologue(bound), jnp.arange(width) < count)
            results = list(written)
            for value_class, start, value in zip(out_classes, starts, outputs, strict=True):
                index = index_of_written[value_class]
                results[index] = lax.dynamic_update_slice_in_dim(results[index], value, start, 0)
            return tuple(results)

        kernel.__name__ = kernel.__qualname__ = "jitbatch_" + "".join(c if c.isalnum() else "_" for c in cell.name)
        # In an eager run no other code has a reference to the arenas, so they are updated in place.
        self._call = jax.jit(kernel, static_argnames="width", donate_argnums=(0,) if owned else ())

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def step_kernel(kind: Kind, flows: tuple[bool, ...], owned: bool) -> StepKernel:
    return _kernels.get_or_make((kind.cell, kind.vmapped, flows, owned), lambda: StepKernel(kind, flows, owned))


def _class(aval: Any) -> ValueClass:
    return ValueClass(tuple(aval.shape), aval.dtype)


DISPATCH = Executor("dispatch", lower)
