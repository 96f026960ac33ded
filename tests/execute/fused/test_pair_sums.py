"""Sums of pairs of edge rows: the tables give right sums, in time, at one row for each further reader."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch.execute.fused.pair_sums import PAIR_WIDTH, pair_sums


def summed(values: np.ndarray, target: np.ndarray, due_of_row: np.ndarray, rounds: int, types: int) -> np.ndarray:
    """What a program computes from the tables for edge rows 1, 2, ... with these values: the sum for each target row.

    Pairs are summed in the order in which they are due, in chunks that write all of their rows.
    """
    edges = len(values) + 1
    pairs = pair_sums(target, 1 + np.arange(len(values)), due_of_row, edges)
    rows = len(pairs.left) + PAIR_WIDTH
    tables = pairs.fitted(rows, rounds, rounds + 2, types)
    store = np.concatenate([[0.0], values, np.zeros(rows)])

    def sum_chunks(span: np.ndarray) -> None:
        for k in range(*span):
            begin = tables["pair_start"][k]
            own = slice(begin, begin + PAIR_WIDTH)
            store[edges + begin : edges + begin + PAIR_WIDTH] = (
                store[tables["pair_left"][own]] + store[tables["pair_right"][own]]
            )

    result = np.full(len(due_of_row), np.nan)
    for now in range(rounds * types):
        sum_chunks(tables["pair_span"][rounds - 1 - now // types, types - 1 - now % types])
        due = due_of_row == now  # these rows are read now: what they need must be there
        result[due] = store[pairs.edge_of_row[due]]
    return result


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 400), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_pairs_are_summed_when_they_are_due(edges: int, rows: int, rounds: int, types: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.integers(rng.integers(1, rows + 1), size=edges)
    values = rng.integers(-9, 9, size=edges).astype(float)
    due = rng.integers(rounds * types, size=rows)
    got = summed(values, target, due, rounds, types)
    np.testing.assert_array_equal(got, np.bincount(target, weights=values, minlength=rows))


@pytest.mark.parametrize("readers", [1, 2, 3, 7, 100])
def test_a_further_reader_costs_one_row(readers: int) -> None:
    pairs = pair_sums(np.zeros(readers, np.int64), 1 + np.arange(readers), np.zeros(1, np.int64), readers + 1)
    assert len(pairs.left) == len(pairs.right) == readers - 1
    assert pairs.depth.max(initial=-1) + 1 == (readers - 1).bit_length()
