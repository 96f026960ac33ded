"""What the cells of a function are in the user's code, noted when a cell is first met: for people, not for planning.

Cells with equal jaxprs are one object in the whole process, with the name of whoever made it first. A report is to say
where a cell comes from in the function that is reported, so each function's tables have notes of their own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jitbatch.ir.cell import Cell, ReductionCell
from jitbatch.util.sites import COMPREHENSIONS


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
    several cells that a call runs (see `record/list_arguments`)."""

    name: str
    where: str
    operations: tuple[Operation, ...] = ()
    is_part: bool = False


class Sources:
    """The sources of the cells of one function's tables."""

    def __init__(self) -> None:
        self._known: dict[Cell, Source] = {}

    def note(self, cell: Cell, make: Callable[[], Source]) -> None:
        """Note where a cell comes from, unless that is known."""
        if cell not in self._known:
            source = make()
            self._known[cell] = source._replace(name=_plain(source.name, cell))

    def of(self, cell: Cell) -> Source:
        return self._known.get(cell) or Source(_plain(cell.name, cell), cell.where)


def _plain(name: str, cell: Cell) -> str:
    """A qualified name without what only says that a function is defined inside another, or which comprehension of a
    function it is."""
    parts = name.split(".<locals>.")
    named = [part for part in parts if part not in COMPREHENSIONS] or parts
    return cell.name if isinstance(cell, ReductionCell) else named[-1]
