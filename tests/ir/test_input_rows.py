"""Leaves as rows: which are used, in which order, and where each input is among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitbatch.ir.input_rows import InputRows, find_input_rows, numbers_together

SHAPES = [(), (), (3, 2), (2,), (4,)]
LEAVES: list[Any] = [7, 8, np.arange(6).reshape(3, 2), np.array([10, 11]), "unused"]
# The last row of leaf 2, leaf 1, leaf 3 whole, the first row of leaf 2, leaf 0; then a constant.
INPUTS = [(2, 1, 2), (1, 0, 0), (3, 0, 0), (2, 1, 0), (0, 0, 0), (5, 0, 0)]
CLASSES = [1, 0, 1, 1, 0, 0]


def found(constants: tuple[Any, ...] = (9,)) -> InputRows:
    """What is found for a graph that is not alone."""
    graph = np.repeat([0, 1, 3], [1, len(INPUTS), 1])
    inputs = np.array([(0, 0, 0), *INPUTS, (1, 1, 1)])
    classes = np.array([1, *CLASSES, 0])
    shapes = [[()], [*SHAPES, ()], [], [(), (2,)]]
    rows = find_input_rows(graph, inputs, classes, [np.int32, np.int64], shapes, [(), constants, (), ()])
    first, this, none, last = rows
    assert first.of_input.tolist() == [[1], [0]]
    assert none.of_input.shape == none.counts.shape == (2, 0)
    assert last.of_input.tolist() == [[0], [1]]
    assert last.counts.tolist() == [[0], [2]]
    assert last.taken([3, [4, 5]]) == [(0, [[4, 5]])]
    return this


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
    none = np.zeros(0, int)
    (rows,) = find_input_rows(none, none.reshape(0, 3), none, [], [[]], [()])
    assert rows.of_input.shape == (2, 0)
    assert rows.counts.shape == (2, 0)
    assert not rows.taken([1, 2])
