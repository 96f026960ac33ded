"""The cell of a group of bare operations, of a jitted function, or of a sum."""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from jitbatch.ir.cell import Cell, Identity, array_key, aval_key, equation_params_key, intern_cell
from jitbatch.record.fold import fold, is_inlined, literal
from jitbatch.record.values import Op, Value, root
from jitbatch.util import compat, passes
from jitbatch.util.array_leaves import plain_aval
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
        where = op.site.where if op.site.chain else "?"
        # The cell of a group must not depend on the outputs that the sample reads, so that equal groups have one type.
        keeps_all = self.granularity == "subgraph"
        key, operands = _segment(ops, outputs)

        def make() -> tuple[Cell, list[bool]]:
            jaxpr, used = fold(ops, [], outputs, name, resolve=root, keep_dead_code=keeps_all)
            ids = set(map(id, used))
            return intern_cell(jaxpr, name, where), [id(operand) in ids for operand in operands]

        cell, used = passes.remembered(_group_cells, (keeps_all, key), make)
        return cell, list(itertools.compress(operands, used))


_jit_cells = Cache(1024)
_group_cells = Cache(4096, first=1024)
"""The cell of a group, and which of its operands the cell has."""


def _segment(ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[Hashable, list[Any]]:
    """A key that is equal for groups whose operations fold into equal cells, and the operands of a group in the order
    of their first use (see `fold`). Most groups of a sample are alike, and folding takes many times as long."""
    numbers: dict[int, int] = {}
    operands: list[Any] = []
    avals: list[Hashable] = []

    def number(value: Any) -> Hashable:
        value = root(value)
        found = numbers.get(id(value))
        if found is None:
            constant = None if type(value) is Value else literal(value)
            if constant is not None:
                return aval_key(constant.aval), array_key(np.asarray(constant.val))
            found = numbers[id(value)] = len(numbers)
            operands.append(value)
            avals.append((found, aval_key(plain_aval(value))))
        return found

    steps = []
    for op in ops:
        reads = tuple(map(number, op.inputs))
        for value in op.outputs:
            numbers[id(value)] = len(numbers)
        steps.append((_work(op), reads, len(numbers)))
    return (tuple(steps), tuple(map(number, outputs)), tuple(avals)), operands


def _work(op: Op) -> Hashable:
    """What an operation computes."""
    if op.index is not None:
        return op.index
    if is_inlined(op):
        return Identity(op.params["jaxpr"])
    return op.primitive, equation_params_key(op.primitive, op.params)


def _jit_cell(closed: Any, name: str) -> Cell:
    """The cell of a jitted function: its jaxpr, with the constants as leading operands."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    debug = jaxpr.debug_info
    where = f"{debug.func_filename}:{debug.func_lineno}"
    return intern_cell(compat.make_jaxpr(inputs, jaxpr.outvars, jaxpr.eqns, name), name, where)
