"""Shapes, and digests of what nodes compute."""

from __future__ import annotations

import numpy as np
import pytest
from test_dedupe import batch_of

from jitbatch.batch import fingerprints

# Two phrases of two words, a node over both, and one over the second alone.
WORDS = 4
KINDS = [0, 0, 1, 0, 0, 1, 2, 3]
READS = [[0], [1], [4, 5], [2], [3], [7, 8], [6, 9], [9]]
SHAPES = batch_of(KINDS, READS, [True] * 4, WORDS).shapes


def digests(*keys: int) -> list[int]:
    return fingerprints.digests(SHAPES, np.array(keys)).tolist()


def test_equal_parts_have_one_shape() -> None:
    shape = SHAPES.digest.tolist()
    assert shape[0] == shape[1] == shape[3] == shape[4]
    assert shape[2] == shape[5]
    assert len(set(shape)) == 4


def test_the_inputs_of_a_node_lie_side_by_side() -> None:
    assert sorted(SHAPES.position.tolist()) == list(range(WORDS))
    stretches = list(zip(SHAPES.first.tolist(), SHAPES.end.tolist(), strict=True))
    assert stretches == [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4), (0, 4), (2, 4)]


def test_an_input_that_is_read_late_is_put_with_what_it_is_read_with() -> None:
    """Words, and then a label for each: the label of a word comes to lie behind it."""
    shapes = batch_of([0, 0, 1, 1], [[0], [1], [4, 2], [5, 3]], [True] * 2, 4).shapes
    assert shapes.position.tolist() == [0, 2, 1, 3]


def test_digests_are_of_shapes_and_inputs() -> None:
    same = digests(7, 8, 7, 8)
    assert same[2] == same[5]
    assert same[0] == same[3] != same[1]
    other = digests(7, 8, 8, 7)  # the same words in another order
    assert other[2] != other[5]
    assert other[2] == same[2]
    assert other[6] != same[6]


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_powers_and_their_inverses(count: int) -> None:
    powers, inverse = fingerprints._powers(count)
    assert np.all(powers * inverse == 1)
    assert len(set(powers.tolist())) == count
