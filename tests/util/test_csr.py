"""Parts of different lengths, one after the other."""

from __future__ import annotations

import numpy as np

from jitbatch.util.csr import cut, offsets, ranges


def test_offsets() -> None:
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets([]).tolist() == [0]


def test_ranges() -> None:
    assert ranges(np.array([5, 1, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]
    assert ranges(np.zeros(0, int), np.zeros(0, int)).tolist() == []


def test_cut_gives_copies_of_the_last_axis() -> None:
    array = np.arange(10).reshape(2, 5)
    first, none, last = cut(array, np.array([2, 0, 3]))
    assert first.tolist() == [[0, 1], [5, 6]]
    assert none.shape == (2, 0)
    assert last.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert first.base is None
    assert [part.tolist() for part in cut(array[0], np.array([4, 1]))] == [[0, 1, 2, 3], [4]]
