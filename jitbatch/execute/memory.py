"""How much memory a plan needs, from its static sizes.

What XLA decides (which buffers share a place, what is fused away) is not known here, so this is a prediction: on the
programs that the tests compile it is within a factor of 1.5 of what XLA allots.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jitbatch.execute.dispatch import DispatchProgram
from jitbatch.execute.fused.loop import LoopShape
from jitbatch.execute.weight_uses import cut_cell, is_float
from jitbatch.ir.tables import ROW, Kind
from jitbatch.util.caches import Cache
from jitbatch.util.errors import PlanError


@dataclass(frozen=True)
class Memory:
    """The predicted peak memory of running a plan, in bytes: parameters, tables, inputs and outputs included.

    Attributes:
        inference: for the outputs.
        training: for a scalar of the outputs and its gradient in all shared arguments.

    >>> print(Memory(inference=3_500_000, training=36_000_000))
    3.5 MB for inference, 36.0 MB for training
    """

    inference: int
    training: int

    def __str__(self) -> str:
        return f"{_readable(self.inference)} for inference, {_readable(self.training)} for training"


def _readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
        size /= 1000
    return f"{size:.1f} TB"


@dataclass(frozen=True)
class Need:
    """What a phase or step needs besides the arenas, in bytes.

    Attributes:
        forward: while it runs.
        saved: from its forward to its backward pass.
        backward: while its backward pass runs.
    """

    forward: int
    saved: int
    backward: int


@dataclass(frozen=True)
class StaticMemory:
    """The part of a prediction that the static part of a plan decides: all but tables, input rows and outputs.

    Attributes:
        inference, training: bytes, as in `Memory`.
        out_rows: bytes of a row of each stacked output. Those of `out="list"` are part of the above.
    """

    inference: int
    training: int
    out_rows: tuple[int, ...]


def predict_memory(plan: Any) -> Memory:
    """The memory that running a plan needs."""
    needed: StaticMemory = plan.static.memory
    outputs = sum(len(rows) * size for rows, size in zip(plan.out_rows, needed.out_rows, strict=False))
    data = outputs + sum(leaf.nbytes for leaf in jax.tree.leaves(plan))
    return Memory(needed.inference + data, needed.training + data)


def predict_static_memory(static: Any) -> StaticMemory:
    """The memory that running any plan with this static part needs."""
    if static.types is None:
        raise PlanError("a plan for the loop executor is compiled sample by sample: nothing predicts its memory")
    classes = [static.tables.classes[arena.value_class] for arena in static.arenas]
    sizes = [arena.capacity * _size(own) for arena, own in zip(static.arenas, classes, strict=True)]
    # A cotangent arena is made from another one.
    cotangents = 2 * sum(size for size, own in zip(sizes, classes, strict=True) if is_float(own))
    numbers = static.program.shared.union(*(arena.shared for arena in static.arenas))
    shared = [static.tables.classes[static.tables.shared_class[number]] for number in numbers]
    parameters = sum(map(_size, shared))
    gradients = sum(_size(own) for own in shared if is_float(own))

    if isinstance(static.program, DispatchProgram):
        needs = [_of_calls(step.kind, step.width) for step in static.program.steps]
        kept = sum(sizes)
    else:
        phases = static.program.phases
        needs = [
            _of_loop(phase, classes) if isinstance(phase, LoopShape)
            else _of_calls(phase.block.kind, phase.block.capacity)
            for phase in phases
        ]  # fmt: skip
        kept = sum(size * _versions(arena, phases) for arena, size in enumerate(sizes))
    outputs = [_size(classes[place]) for places in static.out_arenas for place in places]
    listed = sum(outputs) if static.out == "list" else 0
    forward = max((need.forward for need in needs), default=0)
    backward = max((need.backward for need in needs), default=0)
    return StaticMemory(
        inference=parameters + sum(sizes) + forward + listed,
        training=parameters + gradients + kept + cotangents + sum(need.saved for need in needs) + backward + listed,
        out_rows=() if static.out == "list" else tuple(outputs),
    )


def _versions(arena: int, phases: Sequence[Any]) -> int:
    """How often an arena is kept for the backward pass: as each loop leaves it, if it is written again."""
    writes = [
        {place for places in phase.writes for place in places} if isinstance(phase, LoopShape) else set(phase.writes)
        for phase in phases
    ]
    again = [any(arena in later for later in writes[number + 1 :]) for number in range(len(phases))]
    return 1 + sum(a for a, phase in zip(again, phases, strict=True) if isinstance(phase, LoopShape))


def _of_calls(kind: Kind, width: int) -> Need:
    """One vmapped call; the gradients of its shared operands are made beside those of earlier calls."""
    work = width * _work(kind)
    shared = sum(_size(a) for a, bound in zip(kind.cell.in_avals, kind.binding, strict=True) if bound != ROW)
    return Need(forward=work, saved=width * _saved(kind), backward=work + shared)


def _of_loop(shape: LoopShape, classes: Sequence[Any]) -> Need:
    """What `execute/fused/loop` makes: edge rows are no longer needed when shared operands' gradients are
    contracted."""
    saved = edges = tapped = work = contracted = 0
    for block in shape.blocks:
        cut = cut_cell(block.kind.cell, block.is_row)
        rows = block.capacity + 2 * shape.margin
        # Cotangents of joints lie where the joints' outputs were saved.
        taps = [aval for aval, place in zip(cut.tap_avals, cut.saved_place, strict=True) if place is None]
        taps = sum(map(_size, taps)) + sum(_size(var.aval) for var in cut.stored_joint_rows)
        saved += rows * sum(map(_size, cut.saved_avals))
        tapped += rows * taps
        work = max(work, block.widths[-1] * _work(block.kind))
        contracted += rows * sum(_size(var.aval) for var in dict.fromkeys(v for j in cut.tapped for v in j.rows))
    for own, rows, pairs in zip(classes, shape.edge_rows, shape.pair_rows, strict=True):
        edges += (rows + pairs) * _size(own)
    return Need(forward=work, saved=saved, backward=tapped + max(edges + work, contracted))


def _work(kind: Kind) -> int:
    """Bytes a row while a cell runs: its operands, its outputs and the largest value between them."""
    cell = kind.cell
    operands = sum(_size(aval) for aval, bound in zip(cell.in_avals, kind.binding, strict=True) if bound == ROW)
    between = max((_size(var.aval) for equation in cell.jaxpr.eqns for var in equation.outvars), default=0)
    return operands + sum(map(_size, cell.out_avals)) + between


_saved_bytes = Cache(1024)


def _saved(kind: Kind) -> int:
    """Bytes a row that JAX saves to differentiate a cell: told by tracing it, which takes milliseconds."""
    return _saved_bytes.get_or_make(kind, lambda: _traced_saved(kind))


def _traced_saved(kind: Kind) -> int:
    """The same, asked of JAX; nothing for a cell that has no derivative."""
    is_row = [bound == ROW for bound in kind.binding]

    def at(width: int) -> int:
        operands = [
            jax.ShapeDtypeStruct((width, *aval.shape) if row else aval.shape, aval.dtype)
            for aval, row in zip(kind.cell.in_avals, is_row, strict=True)
        ]
        mapped = jax.vmap(kind.cell, in_axes=tuple(0 if row else None for row in is_row), axis_size=width)
        pull = jax.eval_shape(lambda *operands: jax.vjp(mapped, *operands)[1], *operands)
        return sum(map(_size, jax.tree.leaves(pull)))

    try:
        return at(2) - at(1)
    except Exception:  # whatever JAX says of operations without a derivative, or that cannot be mapped
        return 0


def _size(one: Any) -> int:
    """The bytes of an array, aval or value class."""
    return math.prod(one.shape) * one.dtype.itemsize
