"""Edge rows: the cotangents of all readers of a row come together, once, and those of other rows nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitbatch.execute.fused.cotangent_rows import Edges, EdgeTables
from jitbatch.execute.fused.pair_sums import PAIR_WIDTH

MARGIN, ROUNDS, TYPES, ROWS = 2, 4, 2, 30


def filled(seed: int, operands: int, sums: int) -> tuple[Edges, np.ndarray, list[tuple[int, int]]]:
    """Edges of one arena, the moment each row is due, and pairs of rows and of the edge rows that belong to them."""
    rng = np.random.default_rng(seed)
    due = np.where(np.arange(ROWS) < 10, -1, rng.integers(0, ROUNDS * TYPES, ROWS))
    edges = Edges(2, MARGIN)
    belong: list[tuple[int, int]] = []
    for _ in range(operands):
        rows = rng.integers(0, ROWS, rng.integers(0, 9))
        begin = edges.add_operand(1, rows, 9)
        belong += [(int(row), begin + MARGIN + i) for i, row in enumerate(rows)]
    for _ in range(sums):
        arity = rng.integers(1, 5, 6)
        terms = rng.integers(0, ROWS, arity.sum())
        begin = edges.add_sum(1, terms, arity, 6, 40)
        belong += [(int(t), begin + MARGIN + int(i)) for t, i in zip(terms, np.repeat(range(6), arity), strict=True)]
    return edges, due, belong


def tables(edges: Edges, due: np.ndarray) -> EdgeTables:
    none, found = edges.tables([due, due], (ROUNDS, TYPES), ROUNDS + 1, lambda arena, pairs: pairs + arena)
    assert (none.pair_rows, none.edge_of_row, none.pairs) == (0, None, None)
    assert none.longest == 0
    return found


def totals(edges: Edges, due: np.ndarray, cotangents: np.ndarray) -> np.ndarray:
    """The cotangent of each row, as the backward pass finds it."""
    found = tables(edges, due)
    count = edges.counts[1]
    values = np.zeros(count + found.pair_rows)
    values[:count] = cotangents
    total = np.full(ROWS + 1, np.nan)
    total[np.append(due < 0, True)] = 0
    for round_ in reversed(range(ROUNDS)):
        for place in reversed(range(TYPES)):
            if found.pairs is not None:
                for chunk in range(*found.pairs["pair_span"][round_, place]):
                    at = found.pairs["pair_start"][chunk] + np.arange(PAIR_WIDTH)
                    left, right = (
                        np.pad(found.pairs[name], (0, PAIR_WIDTH))[at] for name in ("pair_left", "pair_right")
                    )
                    inside = at < found.pair_rows
                    values[count + at[inside]] = (values[left] + values[right])[inside]
            now = due == (ROUNDS - 1 - round_) * TYPES + TYPES - 1 - place
            assert found.edge_of_row is not None
            total[:-1][now] = values[found.edge_of_row[now]]
    assert found.row_of_edge is not None
    np.add.at(total, found.row_of_edge[:count], cotangents)
    if found.row_of_term is not None:
        np.add.at(total, found.row_of_term[1], cotangents[found.row_of_term[0]])
    return total[:-1]


@pytest.mark.parametrize("operands", [0, 1, 5, 20])
@pytest.mark.parametrize("sums", [0, 1, 4])
def test_all_readers_of_a_row_are_summed(operands: int, sums: int) -> None:
    for seed in range(5):
        edges, due, belong = filled(seed, operands, sums)
        if not belong:
            continue
        cotangents = np.zeros(edges.counts[1])
        real = sorted({edge for _, edge in belong})
        cotangents[real] = np.random.default_rng(seed).integers(1, 1000, len(real))
        want = np.zeros(ROWS)
        for row, edge in belong:
            want[row] += cotangents[edge]
        got: Any = totals(edges, due, cotangents)
        assert got.tolist() == want.tolist()


def test_edge_rows_of_operands_lie_one_after_the_other() -> None:
    edges = Edges(1, MARGIN)
    assert edges.counts == (0,)
    assert edges.add_operand(0, np.array([3, 4]), 5) == 1
    assert edges.add_sum(0, np.array([3, 4, 3]), np.array([1, 2]), 3, 8) == 1 + 5 + 2 * MARGIN
    assert edges.counts == (1 + 5 + 3 + 4 * MARGIN,)
