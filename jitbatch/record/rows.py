"""The decision between rows of the batch and shared values, for each value of a recording.

A value is a row if it depends on the sample. All other values are shared: leaves of the shared arguments, concrete
arrays, and results of operations on these only.
"""

import itertools
from typing import Any

import numpy as np

from jitbatch.ir.tables import SharedArray, SharedResult
from jitbatch.record.graph_builder import BARE as BARE
from jitbatch.record.graph_builder import GraphBuilder
from jitbatch.record.group_cells import GroupCells
from jitbatch.record.values import ConstantRow, InputSource, Op, Value, given_rows, root, within
from jitbatch.util import compat
from jitbatch.util.array_leaves import plain_aval

SMALL = 1024
"""The largest number of elements of a constant that becomes a row, like an input, if it is passed to a subgraph. So
calls with different constants have one type. Larger constants, and closed-over constants, are part of the cell."""


class ClosesOverTracer(Exception):
    """A sample uses a value of an outer transformation, so its graph is valid for this call only."""


class Rows:
    """The row ids and shared ids of the values of one recording.

    Attributes:
        builder: the graph.
        elements: the rows of the sample's leaves that were read, by their sources.
    """

    def __init__(self, builder: GraphBuilder, cells: GroupCells, may_close_over_tracers: bool):
        self.builder = builder
        self.tables = builder.tables
        self.elements: dict[InputSource, Value] = {}
        self._cells = cells
        self._may_close_over_tracers = may_close_over_tracers

    # Rows

    def row(self, value: Any) -> int | None:
        """The row id of a value, None for a shared value."""
        if type(value) is not Value:
            return None
        if value.row is None:
            origin = root(value)
            if type(origin) is Value:
                if type(origin.source) is ConstantRow:
                    origin.row = self.builder.constant_row(origin.source.array)
                value.row = origin.row
        return value.row

    def any_row(self, value: Any) -> int:
        """The row id of a value. A shared value becomes a row. A small constant becomes a row of the sample's own, so
        that results with different constants have one program."""
        row = self.row(value)
        if row is not None:
            return row
        origin = root(value)
        if type(origin) is not Value and is_small(origin):
            return self.builder.constant_row(origin)
        return self.builder.shared_row(self.shared(value))

    def place(self, op: Op) -> None:
        """Assign row ids to the outputs of an operation, if it depends on the sample."""
        for operand in op.inputs:
            if type(operand) is Value and (operand.row is not None or self.row(operand) is not None):
                break
        else:
            if not op.effects:
                return
        for value in op.outputs:
            if value.row is None:
                value.row = self.builder.bare_row()
                value.form = value.aval_id

    # Elements of the sample's leaves

    def has_few_elements(self, base: Value) -> bool:
        """Whether a value is a leaf of the sample, or a row of a leaf, with a short first axis."""
        return type(base.source) is tuple and base.aval.shape[0] <= SMALL

    def all_elements(self, base: Value) -> list[Value]:
        """`element` for all indices of a value, in half of the time."""
        source, length, trace = base.source, base.aval.shape[0], base._trace
        leaf, depth, row = source
        first = row * length
        known, given = self.elements, self.builder.given
        aval = self.tables.element_aval(base.aval_id, None)
        sources = [(leaf, depth + 1, row) for row in range(first, first + length)]
        missing = [source for source in sources if source not in known]
        values = given_rows(trace, zip(itertools.repeat(aval), missing), len(given))
        known.update(zip(missing, values, strict=True))
        given += missing
        self.builder.given_class += [self.tables.aval_class(aval[1])] * len(missing)
        return values if len(missing) == length else [known[source] for source in sources]

    def element(self, base: Value, index: int) -> Value | None:
        """`base[index]` as an input row, if `base` is a leaf of the sample or a row of a leaf; else None."""
        source = base.source
        if type(source) is not tuple:
            return None
        leaf, depth, row = source
        key = leaf, depth + 1, row * base.aval.shape[0] + index
        found = self.elements.get(key)
        if found is None:
            aval, aval_id = self.tables.element_aval(base.aval_id, None)
            row = self.builder.give(*key, self.tables.aval_class(aval_id))
            found = self.elements[key] = Value(base._trace, aval, aval_id, key, row, aval_id)
        return found

    def element_of(self, op: Op) -> Value | None:
        """The `element` that an indexing operation computes. Aliases of its operand are followed."""
        base, index = root(op.inputs[0]), op.index
        while type(base) is Value and type(base.source) is Op and isinstance(base.source.index, range):
            index, base = within(base.source.index, index), root(base.source.inputs[0])  # type: ignore[arg-type]
        if type(base) is Value and type(base.source) is Op and isinstance(base.source.index, int):
            base = self.element_of(base.source)
        return self.element(base, index) if type(base) is Value and isinstance(index, int) else None

    # Shared values

    def shared(self, value: Any) -> int:
        """The shared id of a shared value."""
        origin = root(value)
        shared_id = self._known_shared(origin)
        if shared_id is not None:
            return shared_id
        pending = [origin.source]
        while pending:  # not recursive: there may be too many operations
            operands = map(root, pending[-1].inputs)
            missing = [operand.source for operand in operands if self._known_shared(operand) is None]
            if not missing:
                self._share_outputs(pending.pop())
            pending += missing
        return self.tables.shared_of_form(origin.form)

    def _known_shared(self, value: Any) -> int | None:
        """The id of a shared value. None if its operation has no id yet."""
        if type(value) is not Value:
            return self._share_array(value)
        if value.form is not None and value.form < 0:
            return self.tables.shared_of_form(value.form)
        return None

    def _share_array(self, value: Any) -> int:
        if compat.is_tracer(value) and not self._may_close_over_tracers:
            raise ClosesOverTracer
        return self.tables.share(SharedArray(value), compat.typeof(value))

    def _share_outputs(self, op: Op) -> None:
        cell, operands = self._cells.cell_of([op], op.outputs)
        shared_ids = tuple([self._known_shared(root(operand)) for operand in operands])
        for output, value in enumerate(op.outputs):
            shared_id = self.tables.share(SharedResult(cell, shared_ids, output), value.aval)  # type: ignore[arg-type]
            value.form = self.tables.shared_form(value.aval_id, shared_id)

    def form(self, value: Any) -> int:
        """The form of an array: its part of the key of a decorated call."""
        if type(value) is not Value:
            return self.tables.shared_form(self.tables.avals.number(plain_aval(value)), self._share_array(value))
        if value.form is None:
            is_shared = self.row(value) is None
            value.form = self.tables.shared_form(value.aval_id, self.shared(value)) if is_shared else value.aval_id
        return value.form


def is_small(value: Any) -> bool:
    """Whether a constant becomes a row if it is passed to a subgraph."""
    return not compat.is_tracer(value) and np.size(value) <= SMALL
