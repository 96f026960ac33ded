"""Sizes: what a loop or a type that has become another one has to have room for."""

from __future__ import annotations

from jitbatch.batch.types import Origin
from jitbatch.execute.sizes import LoopSizes, Sizes, size_of

ONE, OTHER = Origin("a", "core", ((),)), Origin("b", "core", ((),))
ONE_BOUND = Origin("a", "core", ((0, 1),))  # the same cell, with a shared value where the other has a row


def test_the_size_of_a_type() -> None:
    sizes = {ONE: 8, OTHER: 16}
    assert size_of(sizes, ONE) == 8
    assert size_of(sizes, ONE_BOUND) == 8
    assert size_of(sizes, Origin("a", "sink", ((),))) == 0
    assert size_of({ONE: 8, ONE_BOUND: 32}, ONE) == 8
    assert size_of({}, ONE) == 0


def test_loops_that_have_become_one() -> None:
    first = LoopSizes(rounds=4, width=16, pairs={0: 8}, longest=3)
    second = LoopSizes(rounds=2, width=64, pairs={0: 2, 1: 6}, pair_trips={1: 5})
    sizes = Sizes(loops={frozenset({ONE}): first, frozenset({OTHER}): second})
    assert sizes.of_loop([ONE_BOUND]) == first
    assert sizes.of_loop([ONE, OTHER]) == LoopSizes(
        rounds=4, width=64, pairs={0: 8, 1: 6}, pair_trips={1: 5}, longest=3
    )
    assert sizes.of_loop([Origin("c", "core", ((),))]) == LoopSizes()
