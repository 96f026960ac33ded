"""Leaves as rows: which are used, in which order, and where each input is among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from core.cores import CORES

from jitbatch.core import choice
from jitbatch.core.reference.numbering import Ends
from jitbatch.ir.input_rows import InputRows, input_rows, numbers_together

SHAPES = [(), (), (3, 2), (2,), (4,)]
LEAVES: list[Any] = [7, 8, np.arange(6).reshape(3, 2), np.array([10, 11]), "unused"]
# The last row of leaf 2, leaf 1, leaf 3 whole, the first row of leaf 2, leaf 0; then a constant.
INPUTS = [(2, 1, 2), (1, 0, 0), (3, 0, 0), (2, 1, 0), (0, 0, 0), (5, 0, 0)]
CLASSES = [1, 0, 1, 1, 0, 0]


@pytest.fixture(params=CORES, autouse=True)
def core(request: pytest.FixtureRequest) -> Iterator[None]:
    with choice.using(request.param):
        yield


def found(constants: tuple[Any, ...] = (9,)) -> InputRows:
    """The rows of a graph that returns these inputs."""
    none = np.zeros(0, np.int32)
    ends = Ends(np.zeros(1, np.int32), none, np.zeros(1, np.int32), none, none)
    rows = [-1 - row for row in range(len(INPUTS))]
    numbers, bounds, _, leaves = choice.number(ends, [], [], [], [], rows, INPUTS, CLASSES, [*SHAPES, ()])
    of_input, counts = (numbers[begin:end].reshape(2, -1) for begin, end in itertools.pairwise(bounds[-3:]))
    return input_rows(of_input, counts, leaves, [np.dtype(np.int32), np.dtype(np.int64)], constants)


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
    none = np.zeros((2, 0), np.int32)
    assert not input_rows(none, none, [], [], ()).taken([1, 2])
