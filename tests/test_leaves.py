"""Leaves as rows: which are used, in which order, and where each input is among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitbatch._leaves import InputRows, find_input_rows, numbers_together

SHAPES = [(), (), (3, 2), (2,), (4,)]
LEAVES: list[Any] = [7, 8, np.arange(6).reshape(3, 2), np.array([10, 11]), "unused"]
# The last row of leaf 2, leaf 1, leaf 3 whole, the first row of leaf 2, leaf 0; then a constant.
INPUTS = [(2, 1, 2), (1, 0, 0), (3, 0, 0), (2, 1, 0), (0, 0, 0), (5, 0, 0)]
CLASSES = [1, 0, 1, 1, 0, 0]


def found(constants: tuple[Any, ...] = (9,)) -> InputRows:
    dtypes = {0: np.int32, 1: np.int64}.__getitem__
    return find_input_rows(np.array(INPUTS), np.array(CLASSES), dtypes, [*SHAPES, ()], constants)


def test_rows_of_inputs() -> None:
    rows = found()
    assert rows.of_input.tolist() == [CLASSES, [2, 0, 3, 0, 1, 2]]
    assert dict(rows.counts.T.tolist()) == {0: 3, 1: 4}


def test_leaves_are_taken_in_the_order_of_rows() -> None:
    rows = found()
    for taken in (rows.taken(LEAVES), rows.packed(LEAVES)):
        stacked = {number: np.concatenate([np.reshape(a, (-1, 1)) for a in arrays]) for number, arrays in taken}
        assert stacked[0].ravel().tolist() == [8, 7, 9]
        pairs = stacked[1].reshape(-1, 2)
        values = [pairs[row] if number else stacked[0][row] for number, row in rows.of_input.T]
        assert [v.tolist() for v in values] == [[4, 5], [8], [10, 11], [0, 1], [7], [9]]


def test_packed_numbers_are_one_array() -> None:
    (_, (numbers,)), (_, arrays) = sorted(found().packed(LEAVES))
    assert numbers.tolist() == [8, 7, 9]
    assert numbers.dtype == np.int32
    assert arrays[0] is LEAVES[2]  # so that a change is seen
    assert arrays[1] is LEAVES[3]


def test_numbers_that_follow_each_other() -> None:
    array = np.float32([5])
    first, second, third = numbers_together([1, 2.5, array, True], np.float32)
    assert first.tolist() == [1, 2.5]
    assert second is array
    assert third.tolist() == [1]


def test_no_inputs() -> None:
    rows = find_input_rows(np.zeros((0, 3), int), np.zeros(0, int), int, [], ())
    assert rows.of_input.shape == (2, 0)
    assert rows.counts.shape == (2, 0)
    assert not rows.taken([1, 2])
