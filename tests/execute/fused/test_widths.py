"""Chunks cover the nodes of a round at the lowest cost."""

import itertools

import numpy as np
import pytest

from jitbatch.execute.fused.widths import LAUNCH, WIDTHS, chunks_of, overshoot, widths_for


@pytest.mark.parametrize("widths", [WIDTHS, (8,), (8, 32), (3, 5, 7)])
def test_chunks_cover_the_nodes_and_only_the_last_is_padded(widths: tuple[int, ...]) -> None:
    counts = np.arange(4 * widths[-1] + 2)
    chunks = chunks_of(counts, widths)
    covered = chunks @ np.array(widths)
    assert np.all(covered >= counts)
    for count, used in zip(counts, chunks, strict=True):
        smallest = min((width for width, number in zip(widths, used, strict=True) if number), default=0)
        assert not count or used @ np.array(widths) - count < smallest


def test_chunks_are_the_cheapest() -> None:
    widths = (8, 32, 128)
    for count in range(1, 128):
        mixes = itertools.product(range(17), range(5), range(2))
        cheapest = min(sum(mix) * LAUNCH + np.dot(mix, widths) for mix in mixes if np.dot(mix, widths) >= count)
        (chunks,) = chunks_of(np.array([count]), widths)
        assert chunks.sum() * LAUNCH + chunks @ np.array(widths) == cheapest


def test_how_much_chunks_overshoot() -> None:
    assert [overshoot((8, 32, 128, 512)[:n]) for n in (1, 2, 3, 4)] == [7, 15, 23, 31]


def test_a_small_loop_has_narrow_chunks_and_a_large_one_few_widths() -> None:
    assert [widths_for(largest) for largest in (0, 1, 2, 20)] == [(2,), (2,), (2,), (2, 4, 16)]
    assert [widths_for(largest) for largest in (128, 1000)] == [(2, 4, 16, 64), (4, 16, 64, 256, 512)]
    assert widths_for(1, least=512) == (4, 16, 64, 256, 512)


def test_no_nodes_have_no_chunks() -> None:
    assert not chunks_of(np.array([0]), WIDTHS).any()
