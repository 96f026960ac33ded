"""What executors make of an analysed batch."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


def round_up(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: sizes repeat, and at most a third of a size is padding."""
    if count <= 2:
        return max(count, 1)
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


@dataclass(frozen=True)
class ArenaShape:
    """The static part of an arena: its class, the shared values it begins with, how many input rows, and its size."""

    value_class: int
    shared: tuple[int, ...]
    inputs: int
    capacity: int


class Program(Protocol):
    """The static part of what an executor runs: hashable, and the same for batches that one compilation serves."""

    @property
    def shared(self) -> set[int]:
        """The shared values that cells are bound to."""
        ...

    def run(self, tables: Any, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        """The arenas with the rows of all nodes."""
        ...

    def describe(self, tables: Any) -> list[str]:
        """A line for each step, for people."""
        ...


@dataclass(frozen=True, eq=False)
class Lowered:
    """A batch, ready to be run by a program.

    Attributes:
        program: the static part.
        tables: the dynamic part, a pytree of integer arrays.
        arenas: the arenas that the program uses.
        value_row: int [values]; the row of every value.
        steps, bound, launches: how many there are; see `Summary`.
        padded_rows: how many rows these compute, padding included.
    """

    program: Program
    tables: Any
    arenas: tuple[ArenaShape, ...]
    value_row: np.ndarray
    steps: int
    bound: int
    launches: int
    padded_rows: int
