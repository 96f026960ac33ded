"""The memory that programs need besides their arenas."""

import math
from dataclasses import dataclass
from typing import Any

import jax

from jitbatch.ir.tables import Kind
from jitbatch.util.caches import Cache


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
class ProgramMemory:
    """The memory of a program besides its arenas.

    Attributes:
        needs: the need of each phase or step.
        kept: the bytes of arenas that are kept for the backward pass.
    """

    needs: tuple[Need, ...]
    kept: int


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
