"""What the values of a recording are: rows of the batch, each with a number, or shared values.

Rows are numbered while a sample is recorded, so that a graph is a matter of integers. What is given (inputs of the
sample, constants that are rows, shared values that are needed as rows) has numbers from -1 downwards, what nodes make
has numbers from 0 upwards, and what bare operations make, of which nodes are made later, from `BARE` upwards. Arguments
of a body that runs have numbers of the last sort as well, which are `same` as those of what is passed.
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.ir.cell import Cell, Identity, array_key, intern_cell
from jitbatch.ir.tables import SharedArray, SharedResult, Tables
from jitbatch.record.fold import fold
from jitbatch.record.values import ConstantRow, InputSource, Op, Value, given_rows, root, within
from jitbatch.util import compat
from jitbatch.util.array_leaves import plain_aval
from jitbatch.util.caches import Cache

BARE = 1 << 40
"""The first number of what bare operations make."""

SMALL = 1024
"""Constants of up to this many elements that are passed to a subgraph are rows of the batch, as inputs are: calls on
different constants are one bucket. Larger ones, and what a subgraph closes over, are part of what it computes."""


class ClosesOverTracer(Exception):
    """A sample uses a value of an outer transformation: its graph holds for this call alone."""


class SharedRow(NamedTuple):
    """A shared value that is needed as a row."""

    number: int


class Numbers:
    """The numbers of the rows of one recording.

    Attributes:
        made: how many values the nodes make so far.
        bare: how many values the bare operations make so far, and arguments.
        same: of some numbers from `BARE` upwards the number, given earlier, of what has the same value.
        given: for each number from -1 downwards a leaf, how many of its axes are indexed, and the row along them; or -1
            and the number of a shared value.
        given_class: the class of each.
        leaf_avals: of the leaves of the sample, then of the constants.
        constants: those that are rows.
    """

    def __init__(self, tables: Tables, granularity: str, may_close_over_tracers: bool):
        self.tables = tables
        self.granularity = granularity
        self.may_close_over_tracers = may_close_over_tracers
        self.made = 0
        self.bare = 0
        self.same: dict[int, int] = {}
        self.given: list[tuple[int, int, int]] = []
        self.given_class: list[int] = []
        self.leaf_avals: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[Hashable, int] = {}
        self.elements: dict[InputSource, Value] = {}

    # Rows

    def give(self, leaf: int, depth: int, row: int, in_class: int) -> int:
        """The number of a new row that is given."""
        self.given.append((leaf, depth, row))
        self.given_class.append(in_class)
        return -len(self.given)

    def fresh(self) -> int:
        """The number of a new row that is made by a bare operation."""
        self.bare += 1
        return BARE + self.bare - 1

    def actual(self, row: int) -> int:
        """The number of a value under which it was made."""
        while row in self.same:
            row = self.same[row]
        return row

    def constant_row(self, value: Any) -> int:
        """A constant that is a row, as a leaf of the sample is."""
        aval = compat.typeof(value)
        host = value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)
        key = "constant", array_key(host)
        if key not in self._known:
            self._known[key] = self.give(len(self.leaf_avals), 0, 0, self.tables.class_of(aval))
            self.leaf_avals.append(aval)
            self.constants.append(host)
        return self._known[key]

    def shared_row(self, number: int) -> int:
        key = SharedRow(number)
        if key not in self._known:
            self._known[key] = self.give(-1, number, 0, self.tables.shared_class[number])
        return self._known[key]

    def row(self, value: Any) -> int | None:
        """The number of a value that is a row, None for one that is shared."""
        if type(value) is not Value:
            return None
        if value.row is None:
            origin = root(value)
            if type(origin) is Value:
                if type(origin.source) is ConstantRow:
                    origin.row = self.constant_row(origin.source.array)
                value.row = origin.row
        return value.row

    def place(self, op: Op) -> None:
        """Give numbers to what an operation makes, if it is work of the sample."""
        for given in op.inputs:
            if type(given) is Value and (given.row is not None or self.row(given) is not None):
                break
        else:
            if not op.effects:
                return
        for value in op.outputs:
            if value.row is None:
                value.row = self.fresh()
                value.form = value.aval_number

    def are_given(self, base: Value) -> bool:
        """Whether a value is a leaf of the sample, or a row of one, and has few rows."""
        source = base.source
        return type(source) is tuple and base.aval.shape[0] <= SMALL

    def all_elements(self, base: Value) -> list[Value]:
        """What `element` gives for every index, in half of the time."""
        source, length, trace = base.source, base.aval.shape[0], base._trace
        leaf, depth, row = source
        first = row * length
        known, given = self.elements, self.given
        aval = self.tables.element_aval(base.aval_number, None)
        sources = [(leaf, depth + 1, row) for row in range(first, first + length)]
        missing = [source for source in sources if source not in known]
        values = given_rows(trace, zip(itertools.repeat(aval), missing), len(given))
        known.update(zip(missing, values, strict=True))
        given += missing
        self.given_class += [self.tables.aval_class(aval[1])] * len(missing)
        return values if len(missing) == length else [known[source] for source in sources]

    def element(self, base: Value, index: int) -> Value | None:
        """A row of a leaf of the sample, or of a row of one; None of anything else."""
        source = base.source
        if type(source) is not tuple:
            return None
        leaf, depth, row = source
        key = leaf, depth + 1, row * base.aval.shape[0] + index
        found = self.elements.get(key)
        if found is None:
            aval, number = self.tables.element_aval(base.aval_number, None)
            row = self.give(*key, self.tables.aval_class(number))
            found = self.elements[key] = Value(base._trace, aval, number, key, row, number)
        return found

    def element_of(self, op: Op) -> Value | None:
        """The same of what an indexing operation makes, whatever its operand is an alias of."""
        base, index = root(op.inputs[0]), op.index
        while type(base) is Value and type(base.source) is Op and isinstance(base.source.index, range):
            index, base = within(base.source.index, index), root(base.source.inputs[0])  # type: ignore[arg-type]
        if type(base) is Value and type(base.source) is Op and isinstance(base.source.index, int):
            base = self.element_of(base.source)
        return self.element(base, index) if type(base) is Value and isinstance(index, int) else None

    # Shared values

    def shared(self, value: Any) -> int:
        """The number of a value that is shared."""
        origin = root(value)
        number = self._shared_number(origin)
        if number is not None:
            return number
        pending = [origin.source]
        while pending:  # there may be too many operations for a recursion
            missing = [given.source for given in map(root, pending[-1].inputs) if self._shared_number(given) is None]
            if not missing:
                self._compute(pending.pop())
            pending += missing
        return self.tables.shared_of_form(origin.form)

    def _shared_number(self, value: Any) -> int | None:
        """The number of a shared value, None if it is made by an operation that has none yet."""
        if type(value) is not Value:
            return self._constant(value)
        if value.form is not None and value.form < 0:
            return self.tables.shared_of_form(value.form)
        return None

    def _constant(self, value: Any) -> int:
        if compat.is_tracer(value) and not self.may_close_over_tracers:
            raise ClosesOverTracer
        return self.tables.share(SharedArray(value), compat.typeof(value))

    def _compute(self, op: Op) -> None:
        cell, operands = self.cell_of([op], op.outputs)
        numbers = tuple([self._shared_number(root(operand)) for operand in operands])
        for output, value in enumerate(op.outputs):
            number = self.tables.share(SharedResult(cell, numbers, output), value.aval)  # type: ignore[arg-type]
            value.form = self.tables.shared_form(value.aval_number, number)

    def form(self, value: Any) -> int:
        """What a decorated function that is called on an array depends on."""
        if type(value) is not Value:
            return self.tables.shared_form(self.tables.avals.number(plain_aval(value)), self._constant(value))
        if value.form is None:
            shared = self.row(value) is None
            value.form = self.tables.shared_form(value.aval_number, self.shared(value)) if shared else value.aval_number
        return value.form

    # Cells

    def is_boundary(self, op: Op) -> bool:
        return op.cell is not None or (self.granularity == "subgraph" and op.is_users_jit)

    def cell_of(self, ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[Cell, list[Any]]:
        """The cell of a group of operations, and its operands."""
        op = ops[0]
        if op.cell is not None:
            return op.cell, [root(value) for value in op.inputs]
        if self.is_boundary(op):
            closed = op.params["jaxpr"]
            cell = _jit_cells.get_or_make(Identity(closed), lambda: _jit_cell(closed, op.params["name"]))
            return cell, [*closed.consts, *(root(value) for value in op.inputs)]
        assert op.site is not None
        where = op.site.chain[0][0].f_code.co_qualname if op.site.chain else "sample"
        name = where.replace("<locals>.", "")
        # What a group computes is not to depend on what its sample reads of it, so that equal groups are one type.
        jaxpr, operands = fold(ops, [], outputs, name, resolve=root, keep_dead_code=self.granularity == "subgraph")
        return intern_cell(jaxpr, name, op.site.where if op.site.chain else "?"), operands


_jit_cells = Cache(1024)


def _jit_cell(closed: Any, name: str) -> Cell:
    """The cell of a jitted function: its jaxpr with the constants as leading operands."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    debug = jaxpr.debug_info
    where = f"{debug.func_filename}:{debug.func_lineno}"
    return intern_cell(compat.make_jaxpr(inputs, jaxpr.outvars, jaxpr.eqns, name), name, where)


def is_small(value: Any) -> bool:
    return not compat.is_tracer(value) and np.size(value) <= SMALL
