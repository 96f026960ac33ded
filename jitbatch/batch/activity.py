"""Which rows a derivative can pass through.

Values of a batch lie in one arena, whatever they depend on, and to JAX an arena has a derivative as a whole. But inputs
are constants, so are values that depend on nothing else, and so is what `jax.lax.stop_gradient` made, the maximum of
any number of values among that (`ir/cell.ReductionCell`). Where a type
reads only such values as one of its operands, its rows are taken as the constants that they are. So a batch has the
derivatives of the plain loop also where that of an operand would be infinite (the root of a zero) or does not exist
(`lax.while_loop`), and no time is spent on the gradient of inputs.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jax import lax
from jax.extend.core import primitives

from jitbatch.ir.cell import Cell
from jitbatch.ir.tables import ROW, Kind, SharedArray, Tables
from jitbatch.util import compat
from jitbatch.util.caches import Cache


class Feed(NamedTuple):
    """Some node of type `reader` has output `output` of some node of type `read` as its row operand `row`."""

    read: int
    output: int
    reader: int
    row: int


Flows = tuple[tuple[bool, ...], ...]
"""For each type, for each row operand."""


def find_flows(
    kinds: Sequence[Kind], feeds: Collection[Feed], from_shared: Collection[tuple[int, int]], tables: Tables
) -> Flows:
    """Through which row operands of which types a derivative with respect to shared values can pass.

    Args:
        kinds: those of the types.
        feeds: what can be read as which operand.
        from_shared: types and row operands that shared values are given as, too.
    """
    flows = [[False] * kind.rows for kind in kinds]
    for number, row in from_shared:
        flows[number][row] = kinds[number].cell.has_derivative
    readers: dict[tuple[int, int], list[Feed]] = {}
    for feed in feeds:
        readers.setdefault((feed.read, feed.output), []).append(feed)
    remaining = deque(range(len(kinds)))
    while remaining:
        number = remaining.popleft()
        for output, is_reached in enumerate(_outputs_reached(kinds[number], flows[number], tables)):
            for feed in readers.get((number, output), ()) if is_reached else ():
                if kinds[feed.reader].cell.has_derivative and not flows[feed.reader][feed.row]:
                    flows[feed.reader][feed.row] = True
                    remaining.append(feed.reader)
    return tuple(map(tuple, flows))


def every_flow(kinds: Sequence[Kind]) -> Flows:
    """Through which row operands a derivative can pass where inputs are not constants."""
    return tuple((kind.cell.has_derivative,) * kind.rows for kind in kinds)


def without_flow(rows: Any, flows: bool) -> Any:
    """Rows, as constants if no derivative can pass through them."""
    return rows if flows or not compat.is_float(rows) else lax.stop_gradient(rows)


def _outputs_reached(kind: Kind, flows: Sequence[bool], tables: Tables) -> tuple[bool, ...]:
    rows = iter(flows)
    operands = [next(rows) if bound == ROW else _has_derivative(tables.shared[bound]) for bound in kind.binding]
    return _known.get_or_make((kind.cell, *operands), lambda: _reached(kind.cell, operands))


def _has_derivative(shared: Any) -> bool:
    return not isinstance(shared, SharedArray) or compat.is_tracer(shared.value)


_known = Cache(4096, first=1024)


def _reached(cell: Cell, operands: Sequence[bool]) -> tuple[bool, ...]:
    """Which outputs of a cell depend on these operands, by way of floating-point numbers."""
    jaxpr = cell.jaxpr.jaxpr
    reached = {var for var, flows in zip(jaxpr.invars, operands, strict=True) if flows and compat.is_float(var.aval)}

    def is_reached(atom: Any) -> bool:
        return not isinstance(atom, compat.Literal) and atom in reached

    for equation in jaxpr.eqns:
        if equation.primitive is not primitives.stop_gradient_p and any(map(is_reached, equation.invars)):
            reached |= {var for var in equation.outvars if compat.is_float(var.aval)}
    return tuple(map(is_reached, jaxpr.outvars))
