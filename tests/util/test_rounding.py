"""Sizes are rounded so that they repeat."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jitbatch.execute.program import ArenaShape
from jitbatch.util.rounding import round_up


def test_sizes_begin_as_said() -> None:
    assert sorted({round_up(count) for count in range(97)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]


def test_sizes_are_large_enough_and_at_most_a_third_is_padding() -> None:
    sizes = [round_up(count) for count in range(1, 5000)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert all(3 * (size - count) < size for count, size in enumerate(sizes, 1))
    assert all(small <= large for small, large in pairwise(sizes))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 1 << 20, 3 << 20])
def test_a_size_is_its_own_size(count: int) -> None:
    assert round_up(round_up(count)) == round_up(count) == max(count, 1)


def test_arenas_are_compared_by_what_they_are() -> None:
    assert ArenaShape(0, (1,), 2, 3) == ArenaShape(0, (1,), 2, 3)
    assert hash(ArenaShape(0, (1,), 2, 3)) == hash(ArenaShape(0, (1,), 2, 3))
    assert ArenaShape(0, (1,), 2, 3) != ArenaShape(0, (2,), 2, 3)
