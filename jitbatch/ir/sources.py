"""The origin of the cells of a function in the user's code. Reports use it; planning does not.

Cells with equal jaxprs are one object in the whole process, with the name of the first function that made it. A report
names the origin of a cell in the function that it describes. So the tables of each function note origins of their own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jitbatch.ir.cell import Cell, ReductionCell
from jitbatch.util.sites import COMPREHENSIONS


class Operand(NamedTuple):
    """An operand of an operation: its aval, and its value if it is a constant in the code."""

    aval: Any
    constant: Any = None


class Operation(NamedTuple):
    """A recorded operation: its name, the user's line, its operands and its parameters."""

    name: str
    where: str
    operands: tuple[Operand, ...]
    params: dict[str, Any]


class Source(NamedTuple):
    """The origin of a cell.

    Attributes:
        name, where: the user's function, and its file and line.
        operations: the recorded operations.
        is_part: whether the cell is one of several cells of one call (see `record/list_arguments`).
        is_bare: whether the cell is a group of operations outside of decorated and jitted functions.
    """

    name: str
    where: str
    operations: tuple[Operation, ...] = ()
    is_part: bool = False
    is_bare: bool = False


class Sources:
    """The sources of the cells of one function's tables."""

    def __init__(self) -> None:
        self._known: dict[Cell, Source] = {}

    def note(self, cell: Cell, make: Callable[[], Source]) -> None:
        """Note the origin of a cell, made by `make()`, unless it is known."""
        if cell not in self._known:
            source = make()
            self._known[cell] = source._replace(name=_plain(source.name, cell))

    def of(self, cell: Cell) -> Source:
        """The noted origin of a cell; without a note, the name and line of the cell itself."""
        return self._known.get(cell) or Source(_plain(cell.name, cell), cell.where)


def _plain(name: str, cell: Cell) -> str:
    """A qualified name without the enclosing functions and without comprehensions; for a reduction, the name of its
    cell."""
    parts = name.split(".<locals>.")
    named = [part for part in parts if part not in COMPREHENSIONS] or parts
    return cell.name if isinstance(cell, ReductionCell) else named[-1]
