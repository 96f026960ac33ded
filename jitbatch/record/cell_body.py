"""The body of a decorated function as cells. The body calls no other decorated function."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jitbatch.ir.cell import Cell, ReductionCell, intern_cell
from jitbatch.ir.tables import Tables
from jitbatch.record.fold import fold
from jitbatch.record.list_arguments import Cells, Element, open_body
from jitbatch.record.notes import note_call
from jitbatch.record.values import ConstantRow, Op, Value, within_body
from jitbatch.util import compat
from jitbatch.util.array_leaves import described, is_array
from jitbatch.util.errors import OutputError
from jitbatch.util.key_order import flatten
from jitbatch.util.sites import describe_function, describe_source


class Argument(NamedTuple):
    """A leaf of the arguments of a call."""

    leaf: int


class CellOutput(NamedTuple):
    """An output of an earlier cell of the same body."""

    cell: int
    output: int


class BodyCell(NamedTuple):
    """A cell of a body.

    Attributes:
        cell: the cell.
        inputs: arguments, outputs of earlier cells, constants that are rows, and closed-over values.
        is_passed: for each input, whether it is an argument of the cell. The others are closed over.
        out_avals: the avals of its outputs, each with its id.
    """

    cell: Cell
    inputs: tuple[Any, ...]
    is_passed: tuple[bool, ...]
    out_avals: tuple[tuple[Any, int], ...]


class CellBody(NamedTuple):
    """The body of a decorated function for arguments of one structure. It calls no other decorated function.

    Attributes:
        cells: one cell for the whole body; none if the body computes nothing; several if the body reduces a list of any
            length (see `record/list_arguments`).
        results: for each leaf of the result an `Argument`, a `CellOutput`, or a value that is returned unchanged.
        out_tree: the tree of the result.
    """

    cells: tuple[BodyCell, ...]
    results: tuple[Any, ...]
    out_tree: Any

    @property
    def closes_over_tracer(self) -> bool:
        """Whether the body closes over a tracer, and so is valid for this recording only."""
        values = [*self.results, *(value for cell in self.cells for value in cell.inputs)]
        return any(map(compat.is_tracer, values))


def make_cell_body(
    fun: Callable[..., Any], ops: Sequence[Op], leaves: Sequence[Any], elements: Sequence[Element | None],
    shared: set[int], result: Any, tables: Tables,
) -> CellBody:  # fmt: skip
    """Fold the operations of a body into cells.

    Args:
        fun: the called function.
        ops: the recorded operations of its body.
        leaves: the leaves of its arguments, as values inside the body.
        elements: for each leaf the list element that it belongs to, or None.
        shared: the `id`s of the shared leaves.
        result: the return value of the body.
        tables: the tables of the recording.
    """
    returned, out_tree = flatten(result)
    arguments = {id(leaf): position for position, leaf in enumerate(leaves) if type(leaf) is Value}
    parameters = [leaf for leaf in leaves if type(leaf) is Value]
    name, where = getattr(fun, "__qualname__", "cell"), describe_source(fun)[1]
    element_of = {id(leaf): element for leaf, element in zip(leaves, elements, strict=True)}
    cells = open_body(ops, returned, element_of, shared, name, where)
    if cells is None:
        cells = _one_cell(fun, ops, parameters, returned)
    for cell, _, _ in cells:
        note_call(tables.sources, cell, name, where, ops, parameters, len(cells) > 1)
    return _refer_to_arguments(cells, returned, out_tree, arguments, tables)


def _one_cell(
    fun: Callable[..., Any], ops: Sequence[Op], parameters: Sequence[Value], returned: Sequence[Any]
) -> Cells:
    """A body as one cell, or as no cell if it computes nothing."""
    computed = {id(value) for op in ops for value in op.outputs}
    outputs = [leaf for leaf in returned if id(leaf) in computed]
    if not outputs and not any(op.effects for op in ops):
        return []
    jaxpr, operands = fold(ops, parameters, outputs, getattr(fun, "__name__", "cell"))
    name, where = getattr(fun, "__qualname__", "cell"), describe_source(fun)[1]
    return [(intern_cell(jaxpr, name, where), operands, outputs)]


def _refer_to_arguments(
    cells: Cells, returned: Sequence[Any], out_tree: Any, arguments: dict[int, int], tables: Tables
) -> CellBody:
    """Replace values by references: `Argument` for leaves of the arguments, `CellOutput` for outputs of cells."""
    references: dict[int, Any] = {key: Argument(position) for key, position in arguments.items()}

    def refer(value: Any) -> Any:
        value = within_body(value, arguments)
        if type(value) is Value and isinstance(value.source, ConstantRow):
            return value.source
        return references.get(id(value), value)

    body = []
    for place, (cell, operands, outputs) in enumerate(cells):
        inputs = tuple(map(refer, operands))
        is_passed = tuple(type(value) is Argument or isinstance(cell, ReductionCell) for value in inputs)
        body.append(
            BodyCell(cell, inputs, is_passed, tuple((aval, tables.avals.number(aval)) for aval in cell.out_avals))
        )
        references.update((id(value), CellOutput(place, output)) for output, value in enumerate(outputs))
    return CellBody(tuple(body), tuple(map(refer, returned)), out_tree)


def check_returned(fun: Callable[..., Any], result: Any, sample: str) -> None:
    """Raise an error if a leaf of a result is not an array or a number."""
    for position, leaf in enumerate(jax.tree.leaves(result)):
        if not is_array(leaf):
            path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(result)[0][position][0])
            raise OutputError(
                f"{describe_function(fun)} returned {described(leaf)} of type {type(leaf).__name__} "
                f"at result{path}, while {sample} was recorded. A decorated function returns arrays and "
                "numbers in any pytree; return static things from an undecorated function instead."
            )
