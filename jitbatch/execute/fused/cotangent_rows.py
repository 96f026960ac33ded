"""Edge rows: where the cotangents of what a loop reads lie, and how those of one value come together.

An operand of a type has an edge row for each node, and a sum has one for all its terms. The cotangent of a row that the
loop makes is the sum of its edge rows, pair by pair (see `execute/fused/pair_sums`), and due when the backward pass
comes to it. Edge rows of what was made before the loop are added up at its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitbatch.execute.fused.pair_sums import PAIR_WIDTH, pair_sums


@dataclass
class Reads:
    """What is read of one arena.

    Attributes:
        edge_rows: how many edge rows there are; row 0 stays zero.
        begins: where the edge rows of each operand begin, without the margin.
        rows: for each operand int [nodes]; what it reads.
        terms: of each sum of rows what it reads, the edge row of each term, and room for how many terms.
    """

    edge_rows: int = 1
    begins: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    terms: list[tuple[np.ndarray, np.ndarray, int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class EdgeTables:
    """Of one arena, how many sums of pairs there is room for, and the tables that `execute/fused/loop` reads; None for
    none."""

    pair_rows: int = 0
    edge_of_row: np.ndarray | None = None
    row_of_edge: np.ndarray | None = None
    row_of_term: tuple[np.ndarray, np.ndarray] | None = None
    pairs: dict[str, np.ndarray] | None = None

    @property
    def longest(self) -> int:
        """How many chunks of pairs are summed at once, at most."""
        if self.pairs is None:
            return 0
        span = self.pairs["pair_span"]
        return int((span[..., 1] - span[..., 0]).max(initial=0))


class Edges:
    """The edge rows of a loop.

    Args:
        arenas: how many arenas there are.
        margin: how many rows lie before and behind the nodes of each operand.
    """

    def __init__(self, arenas: int, margin: int):
        self.margin = margin
        self.reads = [Reads() for _ in range(arenas)]

    def add_operand(self, arena: int, rows: np.ndarray, capacity: int) -> int:
        """Edge rows for an operand that reads these rows; where they begin."""
        reads = self.reads[arena]
        begin = reads.edge_rows
        reads.begins.append(begin + self.margin)
        reads.rows.append(rows)
        reads.edge_rows += capacity + 2 * self.margin
        return begin

    def add_sum(self, arena: int, terms: np.ndarray, arity: np.ndarray, capacity: int, room: int) -> int:
        """Edge rows for sums of so many terms each; where they begin. All terms have the cotangent of their sum."""
        reads = self.reads[arena]
        begin = reads.edge_rows
        of_term = begin + self.margin + np.arange(len(arity)).repeat(arity)
        reads.terms.append((terms, of_term, room))
        reads.edge_rows += capacity + 2 * self.margin
        return begin

    @property
    def counts(self) -> tuple[int, ...]:
        """How many edge rows there are of each arena, 0 for none."""
        return tuple(reads.edge_rows if reads.edge_rows > 1 else 0 for reads in self.reads)

    def tables(
        self, due: Sequence[np.ndarray], moments: tuple[int, int], room: int, size: Callable[[int, int], int]
    ) -> list[EdgeTables]:
        """The tables of each arena.

        Args:
            due: for each arena int [rows]; when the cotangent of each row is due, -1 if the loop does not make it.
            moments: how many rounds there are, and types in a round.
            room: for how many rounds there is room.
            size: how many sums of pairs to have room for, given the arena and how many there are.
        """
        made = enumerate(zip(self.reads, due, strict=True))
        return [
            self._tables(reads, when, moments, room, lambda n, a=arena: size(a, n)) for arena, (reads, when) in made
        ]

    def _tables(
        self, reads: Reads, due: np.ndarray, moments: tuple[int, int], room: int, size: Callable[[int], int]
    ) -> EdgeTables:
        if reads.edge_rows == 1:
            return EdgeTables()
        target = np.concatenate([*reads.rows, *(terms for terms, _, _ in reads.terms)])
        source = np.concatenate(
            [
                *(np.arange(begin, begin + len(rows)) for begin, rows in zip(reads.begins, reads.rows, strict=True)),
                *(edges for _, edges, _ in reads.terms),
            ]
        )
        inside = due[target] >= 0
        pairs = pair_sums(target[inside], source[inside], due, reads.edge_rows)
        pair_rows = size(len(pairs.left) + PAIR_WIDTH if len(pairs.left) else 0)
        # What the loop does not make: an edge row belongs to one such row, but that of a sum to those of all its terms.
        none = len(due)
        outside = np.where(inside, none, target)
        row_of_edge = np.full(reads.edge_rows + pair_rows, none, np.int32)
        at = 0
        for begin, rows in zip(reads.begins, reads.rows, strict=True):
            row_of_edge[begin : begin + len(rows)] = outside[at : at + len(rows)]
            at += len(rows)
        row_of_term = None
        if reads.terms:
            room_for_terms = sum(terms for _, _, terms in reads.terms)
            row_of_term = np.zeros(room_for_terms, np.int32), np.full(room_for_terms, none, np.int32)
            first = 0
            for rows, edges, terms in reads.terms:
                row_of_term[0][first : first + len(rows)] = edges
                row_of_term[1][first : first + len(rows)] = outside[at : at + len(rows)]
                at, first = at + len(rows), first + terms
        rounds, types = moments
        fitted: Any = pairs.fitted(pair_rows, rounds, room, types) if pair_rows else None
        return EdgeTables(pair_rows, pairs.edge_of_row.astype(np.int32), row_of_edge, row_of_term, fitted)
