"""What the cells of a function are in the user's code, noted when a cell is first met: for people, not for planning.

Cells with equal jaxprs are one object in the whole process, with the name of whoever made it first. A report is to say
where a cell comes from in the function that is reported, so each function's tables have notes of their own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch import _compat
from jitbatch._canonical import Cell, SumCell
from jitbatch._sites import COMPREHENSIONS
from jitbatch._values import Op, Value, root


class Operand(NamedTuple):
    """What an operation was applied to: its aval, and its value where it is a constant in the code."""

    aval: Any
    constant: Any = None


class Operation(NamedTuple):
    """A recorded operation: what it is called, the user's line, and what it was applied to."""

    name: str
    where: str
    operands: tuple[Operand, ...]
    params: dict[str, Any]


class Source(NamedTuple):
    """Where a cell comes from: the user's function, its file and line, the operations in it, and whether it is one of
    several cells that a call runs (see `_open`)."""

    name: str
    where: str
    operations: tuple[Operation, ...] = ()
    is_part: bool = False


class Sources:
    """The sources of the cells of one function's tables."""

    def __init__(self) -> None:
        self._known: dict[Cell, Source] = {}

    def note_call(
        self, cell: Cell, name: str, where: str, body: Sequence[Op], parameters: Sequence[Value], is_part: bool
    ) -> None:
        """Note a cell of a decorated function."""
        if cell not in self._known:
            arguments = {id(value) for value in parameters}
            self._known[cell] = Source(_plain(name, cell), where, _operations(body, arguments), is_part)

    def note_group(self, cell: Cell, ops: Sequence[Op]) -> None:
        """Note the cell of bare operations, of a jitted function, or of a sum."""
        if cell in self._known:
            return
        site = ops[0].site or ops[0].made_from
        name, where = cell.name, cell.where
        if ops[0].is_users_jit:
            debug = ops[0].params["jaxpr"].jaxpr.debug_info
            name, where = ops[0].params["name"], f"{debug.func_filename}:{debug.func_lineno}"
        elif site is not None and site.chain:
            name, where = site.chain[0][0].f_code.co_qualname, site.where
        self._known[cell] = Source(_plain(name, cell), where, _operations(ops, set()))

    def of(self, cell: Cell) -> Source:
        return self._known.get(cell) or Source(_plain(cell.name, cell), cell.where)


def _plain(name: str, cell: Cell) -> str:
    """A qualified name without what only says that a function is defined inside another, or which comprehension of a
    function it is."""
    parts = name.split(".<locals>.")
    named = [part for part in parts if part not in COMPREHENSIONS] or parts
    return cell.name if isinstance(cell, SumCell) else named[-1]


def _operations(ops: Sequence[Op], arguments: set[int]) -> tuple[Operation, ...]:
    return tuple(
        Operation(_name(op), op.site.where, tuple(_operand(value, arguments) for value in op.inputs), _params(op))
        for op in ops
        if op.cell is None and op.site is not None and op.site.chain
    )


def _name(op: Op) -> str:
    if op.index is not None:
        return "indexing"
    return op.params["name"].lstrip("_") if op.primitive is _compat.jit_p else op.primitive.name


def _params(op: Op) -> dict[str, Any]:
    return op.params if op.index is None else {"index": op.index}


def _operand(value: Any, arguments: set[int]) -> Operand:
    if id(value) in arguments:
        return Operand(value.aval)
    origin = root(value)
    if type(origin) is Value or _compat.is_tracer(origin):
        return Operand(origin.aval)
    return Operand(value.aval if type(value) is Value else _aval(origin), origin)


def _aval(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return _compat.make_aval(np.shape(value), value.dtype, getattr(value, "weak_type", False))
    return _compat.make_aval((), np.asarray(value).dtype, True)
