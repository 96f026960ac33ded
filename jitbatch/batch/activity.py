"""Activity analysis: find the row operands that a derivative can pass through. Names in code say "flows".

All values of a value class lie in one arena, and to JAX the whole arena has a derivative. But some values are
constants: the inputs (but those that a plan declares as differentiable), the values that depend on constants alone, and
the results of `jax.lax.stop_gradient`, such as the maximum of any number of values (`ir/cell.ReductionCell`). If a type
reads only constants as one of its operands, the rows of that operand are constants for JAX too. So a batch has the
derivatives of the plain per-sample loop, even where the derivative of an operand is infinite (the square root of zero)
or does not exist (`lax.while_loop`). And a batch spends no time on gradients of inputs that nobody asked for.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives

from jitbatch.ir.cell import Cell
from jitbatch.ir.tables import ROW, Edge, Kind, SharedArray, Tables
from jitbatch.util import compat
from jitbatch.util.caches import Cache

Flows = tuple[tuple[bool, ...], ...]
"""For each type and each of its row operands, whether a derivative can pass through it."""


def find_flows(
    kinds: Sequence[Kind], edges: Collection[Edge[int]], active: Collection[tuple[int, int]], tables: Tables
) -> Flows:
    """Find the row operands that a derivative can pass through.

    Args:
        kinds: the kind of each type.
        edges: between types.
        active: the types and row operands that can read a shared value, or an input that is differentiated.
        tables: the tables of the kinds.
    """
    flows = [[False] * kind.rows for kind in kinds]
    for type_id, row in active:
        flows[type_id][row] = kinds[type_id].cell.has_derivative
    readers: dict[tuple[int, int], list[Edge[int]]] = {}
    for edge in edges:
        readers.setdefault((edge.read, edge.output), []).append(edge)
    remaining = deque(range(len(kinds)))
    while remaining:
        type_id = remaining.popleft()
        for output, is_reached in enumerate(_outputs_reached(kinds[type_id], flows[type_id], tables)):
            for edge in readers.get((type_id, output), ()) if is_reached else ():
                if kinds[edge.reader].cell.has_derivative and not flows[edge.reader][edge.slot]:
                    flows[edge.reader][edge.slot] = True
                    remaining.append(edge.reader)
    return tuple(map(tuple, flows))


def without_flow(rows: Any, flows: bool) -> Any:
    """The rows of an operand; constants for JAX if no derivative can pass through the operand."""
    return rows if flows or not compat.is_float(rows) else lax.stop_gradient(rows)


def _outputs_reached(kind: Kind, flows: Sequence[bool], tables: Tables) -> tuple[bool, ...]:
    """For each output of a kind, whether a derivative reaches it through its active operands."""
    rows = iter(flows)
    operands = [next(rows) if bound == ROW else _has_derivative(tables.shared[bound]) for bound in kind.binding]
    return _known.get_or_make((kind.cell, *operands), lambda: _reached(kind.cell, operands))


def _has_derivative(shared: Any) -> bool:
    return not isinstance(shared, SharedArray) or compat.is_tracer(shared.value)


_known = Cache(4096, first=1024)


def _reached(cell: Cell, operands: Sequence[bool]) -> tuple[bool, ...]:
    """For each output of a cell, whether it depends on an active operand through floating-point values."""
    jaxpr = cell.jaxpr.jaxpr
    reached = {var for var, flows in zip(jaxpr.invars, operands, strict=True) if flows and compat.is_float(var.aval)}

    def is_reached(atom: Any) -> bool:
        return not isinstance(atom, compat.Literal) and atom in reached

    for equation in jaxpr.eqns:
        if equation.primitive is not primitives.stop_gradient_p and any(map(is_reached, equation.invars)):
            reached |= {var for var in equation.outvars if compat.is_float(var.aval)}
    return tuple(map(is_reached, jaxpr.outvars))
