"""The steps of a program, as input of reports, timing and verification."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jitbatch.ir.tables import Kind


class Write(NamedTuple):
    """An output of the nodes of a step.

    Attributes:
        arena: the index of the arena.
        rows: int [nodes]; the row of each node.
    """

    arena: int
    rows: np.ndarray


class Read(NamedTuple):
    """An operand of the nodes of a step.

    Attributes:
        arena: the index of the arena.
        rows: int [reads]; the rows.
        nodes: int [reads]; the index of the reading node in the step.
    """

    arena: int
    rows: np.ndarray
    nodes: np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """One vmapped call of a cell.

    Attributes:
        kind: the kind of its nodes.
        phase: its phase. Steps of one phase and round are independent.
        round: its round in a loop; None outside of loops.
        count: the number of nodes.
        width: the number of computed rows, padding included.
        writes: an entry for each output.
        reads: an entry for each row operand; one entry for all terms of a reduction.
    """

    kind: Kind
    phase: int
    round: int | None
    count: int
    width: int
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]


def operand_reads(arenas: tuple[int, ...], rows: np.ndarray) -> tuple[Read, ...]:
    """Returns the reads of nodes with a fixed number of operands. `rows` is int [operands, nodes]."""
    nodes = np.arange(rows.shape[1])
    return tuple(Read(arena, arena_rows, nodes) for arena, arena_rows in zip(arenas, rows, strict=False))
