"""Notes on the source lines of cells, taken during recording (see `ir/sources`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.ir.cell import Cell
from jitbatch.ir.sources import Operand, Operation, Source, Sources
from jitbatch.record.values import Op, Value, root
from jitbatch.util import compat


def note_call(
    sources: Sources, cell: Cell, name: str, where: str, body: Sequence[Op], parameters: Sequence[Value], is_part: bool
) -> None:
    """Store the source of a cell of a decorated function."""

    def make() -> Source:
        arguments = {id(value) for value in parameters}
        return Source(name, where, _operations(body, arguments), is_part)

    sources.note(cell, make)


def note_group(sources: Sources, cell: Cell, ops: Sequence[Op]) -> None:
    """Store the source of a cell of bare operations, of a jitted function, or of a sum."""

    def make() -> Source:
        site = ops[0].site or ops[0].made_from
        name, where = cell.name, cell.where
        if ops[0].is_users_jit:
            debug = ops[0].params["jaxpr"].jaxpr.debug_info
            name, where = ops[0].params["name"], f"{debug.func_filename}:{debug.func_lineno}"
        elif site is not None and site.chain:
            name, where = site.chain[0][0].f_code.co_qualname, site.where
        return Source(name, where, _operations(ops, set()), is_bare=not ops[0].is_users_jit)

    sources.note(cell, make)


def _operations(ops: Sequence[Op], arguments: set[int]) -> tuple[Operation, ...]:
    return tuple(
        Operation(_name(op), op.site.where, tuple(_operand(value, arguments) for value in op.inputs), _params(op))
        for op in ops
        if op.cell is None and op.site is not None and op.site.chain
    )


def _name(op: Op) -> str:
    if op.index is not None:
        return "indexing"
    return op.params["name"].lstrip("_") if op.primitive is compat.jit_p else op.primitive.name


def _params(op: Op) -> dict[str, Any]:
    return op.params if op.index is None else {"index": op.index}


def _operand(value: Any, arguments: set[int]) -> Operand:
    if id(value) in arguments:
        return Operand(value.aval)
    origin = root(value)
    if type(origin) is Value or compat.is_tracer(origin):
        return Operand(origin.aval)
    return Operand(value.aval if type(value) is Value else _aval(origin), origin)


def _aval(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return compat.make_aval(np.shape(value), value.dtype, getattr(value, "weak_type", False))
    return compat.make_aval((), np.asarray(value).dtype, True)
