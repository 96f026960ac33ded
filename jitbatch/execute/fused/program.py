"""The program of the fused executor: the schedule is data for one XLA program.

A batch runs phase by phase (see `schedule/rounds`). A phase that is not a loop is one vmapped call over all its nodes.
A loop runs round by round. In a round, each type runs the nodes that are ready, in chunks of a few static widths. Trip
counts, chunk positions and operand rows are tables. So one compiled program runs all minibatches with these types and
sizes.

Every output of every type has a block of rows in its arena. The nodes of a type are in its blocks in the order of
execution, so a chunk writes contiguous rows. The last chunk of a round may be wider than the remaining nodes. The next
round overwrites its surplus rows, or they lie in the margin behind the nodes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.execute.fused.loop import run_loop
from jitbatch.execute.fused.loop_steps import steps_of_loop
from jitbatch.execute.fused.memory import memory_of_phases
from jitbatch.execute.fused.shapes import Block, LoopShape, put
from jitbatch.execute.memory import ProgramMemory
from jitbatch.execute.segments import gather, segment_reduce
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.steps import Read, Step, Write, operand_reads
from jitbatch.execute.weight_uses import cut_cell
from jitbatch.ir.describe import kind_names, largest
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.util import compat, jaxprs


@dataclass(frozen=True)
class SingleShape:
    """The static part of a phase that is not a loop.

    Attributes:
        block: its type.
        reads, writes: the arenas of its row operands and of its outputs.
    """

    block: Block
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class FusedProgram:
    """A sequence of phases.

    Attributes:
        phases: the static parts of the phases.
        sizes: the sizes of the program.
    """

    phases: tuple[SingleShape | LoopShape, ...]
    sizes: Sizes = field(compare=False, repr=False)

    @property
    def blocks(self) -> list[Block]:
        return [b for phase in self.phases for b in ([phase.block] if isinstance(phase, SingleShape) else phase.blocks)]

    @property
    def shared(self) -> set[int]:
        return {shared_id for block in self.blocks for shared_id in block.kind.shared_ids}

    def run(self, tables: Sequence[Any], arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        axes = jaxprs.axes_of(tables)
        pending: list[list[tuple[int, Any]]] = [[] for _ in arenas]  # rows to write, with the first row of each
        for phase_id, (phase, table) in enumerate(zip(self.phases, tables, strict=True)):
            if isinstance(phase, SingleShape):
                arenas = _with_rows(arenas, pending, phase.reads)
                with phase.block.kind.cell.scope():
                    results = _run_single(phase, table, arenas, shared)
                for arena, start, rows in zip(phase.writes, phase.block.starts, results, strict=True):
                    pending[arena].append((start, rows))
            else:
                arenas = _with_rows(arenas, pending, range(len(arenas)))
                loop_shared = tuple(jaxprs.cast(_prologue(block, shared), axes) for block in phase.blocks)
                with jax.named_scope(f"loop_{phase_id}"):
                    arenas = list(run_loop(phase, tuple(arenas), loop_shared, table))
        return _with_rows(arenas, pending, range(len(arenas)))

    def describe(self, tables: Sequence[Any]) -> list[str]:
        names = kind_names(block.kind for block in self.blocks)
        lines = []
        for phase_id, (phase, table) in enumerate(zip(self.phases, tables, strict=True)):
            if isinstance(phase, SingleShape):
                lines.append((phase.block.capacity, f"  phase {phase_id}: {names[phase.block.kind]} x{table['total']}"))
            else:
                cells = ", ".join(largest([(block.capacity, names[block.kind]) for block in phase.blocks]))
                room = sum(block.capacity for block in phase.blocks)
                total = "?" if compat.is_tracer(table["total"]) else int(np.sum(table["total"]))
                lines.append((room, f"  phase {phase_id}: {table['rounds']} rounds of {cells} x{total}"))
        return largest(lines)

    def steps(self, tables: Sequence[Any]) -> Iterator[Step]:
        for phase, (shape, table) in enumerate(zip(self.phases, tables, strict=True)):
            if isinstance(shape, SingleShape):
                yield from _step_of_single(phase, shape, table)
            else:
                yield from steps_of_loop(phase, shape, table)

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[ValueClass]) -> ProgramMemory:
        return memory_of_phases(self.phases, arena_sizes, classes)

    def changes(self, before: "FusedProgram", tables: Tables) -> Iterator[str]:
        names = {origin: block.kind.cell.name for origin, block in zip(self.sizes.nodes, self.blocks, strict=True)}
        classes = {class_id: str(value_class) for class_id, value_class in enumerate(tables.classes.entries)}
        return self.sizes.changes(before.sizes, names, classes)


def _step_of_single(phase: int, shape: SingleShape, table: Any) -> Iterator[Step]:
    block, count = shape.block, int(table["total"])
    if not count:
        return
    if block.kind.is_variadic:
        segments = np.asarray(table["segments"])
        is_term = segments < count
        reads = (Read(shape.reads[0], np.asarray(table["terms"])[is_term], segments[is_term]),)
    else:
        reads = operand_reads(shape.reads, np.asarray(table["operands"])[:, :count])
    writes = [Write(arena, start + np.arange(count)) for arena, start in zip(shape.writes, block.starts, strict=True)]
    yield Step(block.kind, phase, None, count, block.capacity, tuple(writes), reads)


def _with_rows(arenas: Sequence[Any], pending: list[list[tuple[int, Any]]], wanted: Iterable[int]) -> list[Any]:
    """Writes the pending rows of the wanted arenas.

    The pending rows of an arena are contiguous and are written at once: in the backward pass, each write costs a copy
    of the arena's cotangent.
    """
    arenas = list(arenas)
    for arena in wanted:
        if pending[arena]:
            arenas[arena] = put(
                arenas[arena], jnp.concatenate([rows for _, rows in pending[arena]]), pending[arena][0][0]
            )
            pending[arena] = []
    return arenas


def _prologue(block: Block, shared: dict[int, Any]) -> list[Any]:
    operands = [shared[shared_id] for shared_id in block.kind.shared_ids]
    return cut_cell(block.kind.cell, block.kind.vmapped).prologue(operands)


def _run_single(shape: SingleShape, table: Any, arenas: Sequence[Any], shared: dict[int, Any]) -> list[Any]:
    """Runs a phase that is not a loop, and returns the rows of each output."""
    block = shape.block
    kind = block.kind
    if kind.operation is not None:
        arena = without_flow(arenas[shape.reads[0]], *block.flows)
        return [segment_reduce(kind.operation, arena, table["terms"], table["segments"], block.capacity)]
    operands = zip(shape.reads, table["operands"], block.flows, strict=True)
    read = [without_flow(gather(arenas[arena], rows), flows) for arena, rows, flows in operands]
    bound = [shared[shared_id] for shared_id in kind.shared_ids]

    cut = cut_cell(kind.cell, block.kind.vmapped)
    is_real = jnp.arange(block.capacity) < table["total"]

    def compute(read: list[Any], bound: list[Any]) -> list[Any]:
        shared = cut.prologue(bound)
        return jax.vmap(cut.forward, in_axes=(0, None, 0), axis_size=block.capacity)(read, shared, is_real)[0]

    def nothing(read: list[Any], bound: list[Any]) -> list[Any]:
        avals = jax.eval_shape(compute, read, bound)
        zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in avals]
        return jaxprs.cast(zeros, jaxprs.axes_of((read, bound)))

    # A type without nodes in this batch is not computed: there is no real row for its padding to repeat.
    return lax.cond(table["total"] > 0, compute, nothing, read, bound)
