"""Templates: the nodes that a decorated call adds to a graph, in terms of its arguments.

The nodes, their kinds and their operands depend only on the forms of the arguments: on their trees and avals, and on
the identity of shared values among them. So one template serves all calls with these forms (see `record/replay`).
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jitbatch.ir.tables import SharedResult
from jitbatch.record.binding import bind
from jitbatch.record.cell_body import Argument, CellBody, CellOutput
from jitbatch.record.graph_builder import SharedRow
from jitbatch.record.rows import Rows
from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import ConstantRow, Value
from jitbatch.util import passes


class NodeOutput(NamedTuple):
    """An output of a node of the template: its index among all node outputs, and its aval."""

    place: int
    aval: Any
    aval_id: int


class SharedOutput(NamedTuple):
    """A shared value that the call computes."""

    form: int
    aval: Any
    aval_id: int


class AnyResult(NamedTuple):
    """A result with other leaves than node outputs, or with one output twice.

    Attributes:
        leaves: for each leaf an `Argument`, `NodeOutput`, `SharedOutput`, `ConstantRow`, or a value that is returned
            unchanged.
        out_tree: the tree of the result.
    """

    leaves: tuple[Any, ...]
    out_tree: Any


class Template(NamedTuple):
    """The nodes and the result of calls with certain forms of arguments.

    Attributes:
        kinds: the kind id of each node.
        counts: the number of rows that each node reads.
        operands: selects the ids of these rows from a list: the row ids of the arguments (without arguments with only
            shared values), the outputs of the nodes, and the `further` rows.
        places: the positions of these ids in the list.
        row_count: the number of row ids of the arguments.
        output_count: the number of node outputs.
        reads_arguments: whether the nodes read only arguments.
        further: constants and shared values that are rows, and closed-over rows.
        results: for each leaf of the result, the content of its `NodeOutput`.
        make: makes the result from its leaves; None if it is one array.
        tuple_type: the class of the result if it is a tuple of its leaves.
        form: the form of the result if it consists of tuples of rows. It is used when the result is passed to a call.
        in_order: whether the result is all node outputs, in order.
        any_result: a result that the four fields before cannot describe.
    """

    kinds: Sequence[int]
    counts: Sequence[int]
    operands: Callable[[list[Any]], Sequence[int]]
    places: Sequence[int]
    row_count: int
    output_count: int
    reads_arguments: bool
    further: tuple[ConstantRow | SharedRow | Value, ...]
    results: tuple[tuple[Any, ...], ...]
    make: Callable[[list[Any]], Any] | None
    tuple_type: type | None
    form: int | None
    in_order: bool
    any_result: AnyResult | None

    @property
    def has_fixed_rows(self) -> bool:
        """Whether the `further` rows are equal for all calls of a recording. This is so if the body closes over no
        rows."""
        return not any(type(row) is Value for row in self.further)


class _Row(NamedTuple):
    """A reference to a row id: a part of the list that `Template.operands` selects from, and the position in that
    part."""

    part: int
    place: int


ARGUMENTS, OUTPUTS, FURTHER = range(3)
"""The parts of that list."""


def make_template(body: CellBody, leaves: Sequence[Any], positions: Sequence[int | None], rows: Rows) -> Template:
    """The template of calls whose arguments have the forms of these leaves.

    Args:
        body: the cells of the call.
        leaves: the leaves of the arguments.
        positions: for each leaf its position among the row ids of the arguments.
        rows: the rows of the recording.
    """
    nodes = _NodeMaker(leaves, positions, rows)
    for cell in body.cells:
        nodes.add(*cell)
    argument_count = max((position + 1 for position in positions if position is not None), default=0)
    starts = 0, argument_count, argument_count + nodes.output_count
    operands = [starts[row.part] + row.place for row in nodes.operands]
    results = [nodes.result(value, body) for value in body.results]
    plain = _plain_result(results, body.out_tree, rows)
    make, tuple_type, form = plain or (None, None, None)
    return Template(
        kinds=nodes.kinds,
        counts=nodes.counts,
        operands=taking(operands),
        places=operands,
        row_count=argument_count,
        output_count=nodes.output_count,
        reads_arguments=all(row.part == ARGUMENTS for row in nodes.operands),
        further=tuple(nodes.further),
        results=() if plain is None else tuple(map(tuple, results)),
        make=make,
        tuple_type=tuple_type,
        form=form,
        in_order=plain is not None and [one.place for one in results] == list(range(nodes.output_count)),
        any_result=AnyResult(tuple(results), body.out_tree) if plain is None else None,
    )


class _NodeMaker:
    """Makes the nodes of a template, cell by cell. The outputs of a cell with only shared operands are shared values;
    such a cell is no node."""

    def __init__(self, leaves: Sequence[Any], positions: Sequence[int | None], rows: Rows):
        self.kinds: list[int] = []
        self.counts: list[int] = []
        self.operands: list[_Row] = []
        self.further: list[ConstantRow | SharedRow | Value] = []
        self.output_count = 0
        self._outputs: list[Sequence[_Row | int]] = []  # of each cell: rows, or shared ids
        self._leaves = leaves
        self._positions = positions
        self._rows = rows
        self._tables = rows.tables

    def add(self, cell: Any, inputs: Sequence[Any], is_passed: Sequence[bool], out_avals: Sequence[Any]) -> None:
        references = [self._reference(value) for value in inputs]
        if not cell.has_effects and all(type(reference) is int for reference in references):
            shared_ids: Any = tuple(references)
            results = [SharedResult(cell, shared_ids, output) for output in range(len(out_avals))]
            shared = [self._tables.share(result, aval) for result, (aval, _) in zip(results, out_avals, strict=True)]
            self._outputs.append(shared)
            return
        binding, reads = bind(cell, references, is_passed, self._tables, self._further_row)
        self.kinds.append(self._tables.kind(cell, binding))
        self.counts.append(len(reads))
        self.operands += reads
        first, self.output_count = self.output_count, self.output_count + len(out_avals)
        self._outputs.append([_Row(OUTPUTS, place) for place in range(first, self.output_count)])

    def _reference(self, value: Any) -> _Row | int:
        """A row, or the id of a shared value."""
        rows = self._rows
        if type(value) is CellOutput:
            return self._outputs[value.cell][value.output]
        if type(value) is ConstantRow:
            return self._further_row(value)
        if type(value) is Argument:
            position, value = self._positions[value.leaf], self._leaves[value.leaf]
            if position is not None and rows.row(value) is not None:
                return _Row(ARGUMENTS, position)
        return rows.shared(value) if rows.row(value) is None else self._further_row(value)

    def _further_row(self, row: ConstantRow | SharedRow | Value) -> _Row:
        self.further.append(row)
        return _Row(FURTHER, len(self.further) - 1)

    def result(self, value: Any, body: CellBody) -> Any:
        """A leaf of the result, in terms of the nodes."""
        if type(value) is not CellOutput:
            return value
        aval, aval_id = body.cells[value.cell].out_avals[value.output]
        output = self._outputs[value.cell][value.output]
        if type(output) is int:
            return SharedOutput(self._tables.shared_form(aval_id, output), aval, aval_id)
        return NodeOutput(output.place, aval, aval_id)  # type: ignore[union-attr]


def _plain_result(results: Sequence[Any], out_tree: Any, rows: Rows) -> tuple[Any, type | None, int | None] | None:
    """The way to make a result from its leaves, the class of the result if it is a tuple of them, and its form. None
    unless the result consists of different node outputs."""
    if not all(type(leaf) is NodeOutput for leaf in results) or not len(set(results)) == len(results) > 0:
        return None
    outline = out_tree.unflatten(list(results))
    if type(outline) is NodeOutput:
        return None, None, None
    if type(outline) is dict:
        return _dict_maker(outline, results) or out_tree.unflatten, None, None
    if not _is_immutable(outline) or not passes.remembers():
        return out_tree.unflatten, None, None
    form = rows.tables.form("tree", out_tree, (), tuple(leaf.aval_id for leaf in results))
    kind = _tuple_type(outline)
    # takes a fifth of the time of `unflatten`
    return (out_tree.unflatten if kind is None else functools.partial(tuple.__new__, kind)), kind, form


def _tuple_type(outline: Any) -> type | None:
    """The class of a tuple or named tuple of arrays; None for other results."""
    kind = type(outline)
    if kind.__bases__ not in ((object,), (tuple,)) or not all(type(part) is NodeOutput for part in outline):
        return None
    if kind is not tuple and not is_named_tuple(kind, outline):
        return None
    return kind


def _dict_maker(outline: dict[Any, Any], results: Sequence[NodeOutput]) -> Callable[[list[Any]], Any] | None:
    """A function that makes a dict of arrays with a fixed order of keys. It is faster than `unflatten`."""
    places = {result: place for place, result in enumerate(results)}
    found = [places.get(part) if type(part) is NodeOutput else None for part in outline.values()]
    if None in found:
        return None
    keys, take = tuple(outline), taking(found)  # type: ignore[arg-type]
    return lambda values: dict(zip(keys, take(values), strict=True))


def _is_immutable(result: Any) -> bool:
    """Whether a result consists of tuples only, so that its parts cannot be replaced later."""
    if type(result) is NodeOutput:
        return True
    is_tuple = type(result) is tuple or (isinstance(result, tuple) and hasattr(result, "_fields"))
    return is_tuple and all(map(_is_immutable, result))


def taking(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that selects the items at some positions of a list."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return operator.itemgetter(slice(places[0], places[0] + 1) if places else slice(0))
