"""The cell of a group of bare operations, of a jitted function, or of a sum."""

from collections.abc import Sequence
from typing import Any

from jitbatch.ir.cell import Cell, Identity, intern_cell
from jitbatch.record.fold import fold
from jitbatch.record.values import Op, Value, root
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache


class GroupCells:
    """Makes cells of operations, at one granularity."""

    def __init__(self, granularity: str):
        self.granularity = granularity

    def is_boundary(self, op: Op) -> bool:
        """Whether an operation is always a separate cell: a sum, or a function that the user jitted."""
        return op.cell is not None or (self.granularity == "subgraph" and op.is_users_jit)

    def cell_of(self, ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[Cell, list[Any]]:
        """The cell of a group of operations, and its operands."""
        op = ops[0]
        if op.cell is not None:
            return op.cell, [root(value) for value in op.inputs]
        if self.is_boundary(op):
            closed, name = op.params["jaxpr"], op.params["name"]
            cell = passes.remembered(_jit_cells, Identity(closed), lambda: _jit_cell(closed, name))
            return cell, [*closed.consts, *(root(value) for value in op.inputs)]
        assert op.site is not None
        where = op.site.chain[0][0].f_code.co_qualname if op.site.chain else "sample"
        name = where.replace("<locals>.", "")
        # The cell of a group must not depend on the outputs that the sample reads, so that equal groups have one type.
        jaxpr, operands = fold(ops, [], outputs, name, resolve=root, keep_dead_code=self.granularity == "subgraph")
        return intern_cell(jaxpr, name, op.site.where if op.site.chain else "?"), operands


_jit_cells = Cache(1024)


def _jit_cell(closed: Any, name: str) -> Cell:
    """The cell of a jitted function: its jaxpr, with the constants as leading operands."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    debug = jaxpr.debug_info
    where = f"{debug.func_filename}:{debug.func_lineno}"
    return intern_cell(compat.make_jaxpr(inputs, jaxpr.outvars, jaxpr.eqns, name), name, where)
