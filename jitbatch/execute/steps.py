"""The steps of a program, as reports, timing and checks read them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jitbatch.ir.tables import Kind


class Write(NamedTuple):
    """An output of the nodes of a step: the arena, and int [nodes], the row of each node."""

    arena: int
    rows: np.ndarray


class Read(NamedTuple):
    """Operands of the nodes of a step: the arena, the rows that are read, and which node of the step reads each."""

    arena: int
    rows: np.ndarray
    nodes: np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """One vmapped call of a cell.

    Attributes:
        kind: what its nodes compute.
        phase: when it runs; steps of one phase and round do not wait for each other.
        round: of a loop the round, None outside of loops.
        count: how many nodes it runs.
        width: how many rows it computes, padding included.
        writes: an entry for each output.
        reads: an entry for each row operand; one for all terms of a reduction.
    """

    kind: Kind
    phase: int
    round: int | None
    count: int
    width: int
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]


def operand_reads(arenas: tuple[int, ...], rows: np.ndarray) -> tuple[Read, ...]:
    """The reads of nodes with a fixed number of operands; `rows` is int [operands, nodes]."""
    nodes = np.arange(rows.shape[1])
    return tuple(Read(arena, own, nodes) for arena, own in zip(arenas, rows, strict=False))
