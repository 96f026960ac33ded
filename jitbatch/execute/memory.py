"""Prediction of a plan's memory from its static sizes.

It is only a prediction, because XLA decides which buffers share memory and which operations are fused. On the programs
in the tests it is within a factor of 1.5 of XLA's allocation.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax

from jitbatch.ir.tables import Kind
from jitbatch.util.caches import Cache
from jitbatch.util.compat import is_float


@dataclass(frozen=True)
class Memory:
    """The predicted peak memory of running a plan in bytes, with parameters, tables, inputs and outputs.

    Attributes:
        inference: bytes to compute the outputs.
        training: bytes to compute a scalar of the outputs and its gradient with respect to all shared arguments.

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
    """The memory of a phase or step besides the arenas, in bytes.

    Attributes:
        forward: bytes during its forward pass.
        saved: bytes from its forward to its backward pass.
        backward: bytes during its backward pass.
    """

    forward: int
    saved: int
    backward: int


@dataclass(frozen=True)
class StaticMemory:
    """The part of a prediction that depends on the static part of a plan: all but tables, input rows and outputs.

    Attributes:
        inference, training: bytes, as in `Memory`.
        out_rows: the bytes of one row of each stacked output. For `out="list"` it is empty, and `inference` and
            `training` include the outputs.
    """

    inference: int
    training: int
    out_rows: tuple[int, ...]


@dataclass(frozen=True)
class ProgramMemory:
    """The memory of a program besides its arenas.

    Attributes:
        needs: the need of each phase or step.
        kept: the bytes of arenas that are kept for the backward pass.
    """

    needs: tuple[Need, ...]
    kept: int


def predict_memory(plan: Any) -> Memory:
    """Predicts the memory of running a plan."""
    needed: StaticMemory = plan.static.memory
    outputs = sum(len(rows) * size for rows, size in zip(plan.out_rows, needed.out_rows, strict=False))
    data = outputs + sum(leaf.nbytes for leaf in jax.tree.leaves(plan))
    return Memory(needed.inference + data, needed.training + data)


def predict_static_memory(static: Any) -> StaticMemory:
    """Predicts the memory of running a plan with this static part, without tables, input rows and stacked outputs."""
    classes = [static.tables.classes[arena.value_class] for arena in static.arenas]
    sizes = [arena.capacity * nbytes(value_class) for arena, value_class in zip(static.arenas, classes, strict=True)]
    program: ProgramMemory = static.program.memory(sizes, classes)
    # An update of a cotangent arena makes a second arena.
    cotangents = 2 * sum(size for size, value_class in zip(sizes, classes, strict=True) if is_float(value_class))
    shared_ids = static.program.shared.union(*(arena.shared for arena in static.arenas))
    shared = [static.tables.classes[static.tables.shared_class[shared_id]] for shared_id in shared_ids]
    parameters = sum(map(nbytes, shared))
    gradients = sum(nbytes(value_class) for value_class in shared if is_float(value_class))
    outputs = [nbytes(classes[class_id]) for class_ids in static.out_arenas for class_id in class_ids]
    listed = sum(outputs) if static.out == "list" else 0
    forward = max((need.forward for need in program.needs), default=0)
    backward = max((need.backward for need in program.needs), default=0)
    saved = sum(need.saved for need in program.needs)
    return StaticMemory(
        inference=parameters + sum(sizes) + forward + listed,
        training=parameters + gradients + program.kept + cotangents + saved + backward + listed,
        out_rows=() if static.out == "list" else tuple(outputs),
    )


def of_calls(kind: Kind, width: int) -> Need:
    """Returns the need of one vmapped call. Its backward pass also holds new gradients of its shared operands."""
    work = width * work_of(kind)
    shared = sum(nbytes(a) for a, is_row in zip(kind.cell.in_avals, kind.vmapped, strict=True) if not is_row)
    return Need(forward=work, saved=width * _saved(kind), backward=work + shared)


def work_of(kind: Kind) -> int:
    """Returns the bytes per row of a running cell: its operands, its outputs and the largest intermediate value."""
    cell = kind.cell
    operands = sum(map(nbytes, kind.row_avals))
    between = max((nbytes(var.aval) for equation in cell.jaxpr.eqns for var in equation.outvars), default=0)
    return operands + sum(map(nbytes, cell.out_avals)) + between


_saved_bytes = Cache(1024)


def _saved(kind: Kind) -> int:
    """Returns the bytes per row that JAX saves to differentiate a cell. Tracing the cell takes milliseconds."""
    return _saved_bytes.get_or_make(kind, lambda: _traced_saved(kind))


def _traced_saved(kind: Kind) -> int:
    """Computes the result of `_saved` by tracing the cell's VJP. A cell without a derivative saves nothing."""

    def at(width: int) -> int:
        operands = [
            jax.ShapeDtypeStruct((width, *aval.shape) if row else aval.shape, aval.dtype)
            for aval, row in zip(kind.cell.in_avals, kind.vmapped, strict=True)
        ]
        mapped = jax.vmap(kind.cell, in_axes=tuple(0 if row else None for row in kind.vmapped), axis_size=width)
        pull = jax.eval_shape(lambda *operands: jax.vjp(mapped, *operands)[1], *operands)
        return sum(map(nbytes, jax.tree.leaves(pull)))

    try:
        return at(2) - at(1)
    except Exception:  # JAX raises various errors for operations without a derivative or batching rule
        return 0


def nbytes(array: Any) -> int:
    """Returns the size of an array, aval or value class in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize
