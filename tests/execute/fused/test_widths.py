"""Chunks cover the nodes of a round at the lowest cost."""

import itertools

import numpy as np
import pytest

from jitbatch.execute.fused.targets import CPU, TARGETS, Target
from jitbatch.execute.fused.widths import chunks_of, most_nodes, overshoot, widths_for


@pytest.mark.parametrize("widths", [CPU.widths, (8,), (8, 32), (3, 5, 7)])
def test_chunks_cover_the_nodes_and_only_the_last_is_padded(widths: tuple[int, ...]) -> None:
    for count in range(4 * widths[-1] + 2):
        used = chunks_of(count, widths, CPU.launch)
        covered = np.dot(used, widths)
        assert covered >= count
        smallest = min((width for width, number in zip(widths, used, strict=True) if number), default=0)
        assert not count or covered - count < smallest


def test_chunks_are_the_cheapest() -> None:
    widths = (8, 32, 128)
    for count in range(1, 128):
        mixes = itertools.product(range(17), range(5), range(2))
        cheapest = min(sum(mix) * CPU.launch + np.dot(mix, widths) for mix in mixes if np.dot(mix, widths) >= count)
        chunks = chunks_of(count, widths, CPU.launch)
        assert sum(chunks) * CPU.launch + np.dot(chunks, widths) == cheapest


def test_how_much_chunks_overshoot() -> None:
    assert [overshoot((8, 32, 128, 512)[:n], CPU.launch) for n in (1, 2, 3, 4)] == [7, 15, 23, 31]


def test_a_small_loop_has_narrow_chunks_and_a_large_one_few_widths() -> None:
    assert [widths_for(CPU, largest) for largest in (0, 1, 2, 20)] == [(2,), (2,), (2,), (2, 4, 16)]
    assert [widths_for(CPU, largest) for largest in (128, 1000)] == [(2, 4, 16, 64), (4, 16, 64, 256, 512)]
    assert widths_for(CPU, 1, least=512) == (4, 16, 64, 256, 512)


def test_no_nodes_have_no_chunks() -> None:
    assert not any(chunks_of(0, CPU.widths, CPU.launch))


@pytest.mark.parametrize(
    ("target", "width"), [(target, width) for target in TARGETS.values() for width in target.widths]
)
def test_how_many_nodes_a_round_can_have_without_wider_chunks(target: Target, width: int) -> None:
    most = most_nodes(target, width)
    assert widths_for(target, most)[-1] <= width
    if width < target.widths[-1]:
        assert widths_for(target, most + 1)[-1] > width


@pytest.mark.parametrize("target", TARGETS.values())
def test_the_widest_chunk_is_at_least_as_wide_as_asked_for(target: Target) -> None:
    for width in (*CPU.widths, *target.widths):
        least = min(width, target.widths[-1])
        assert widths_for(target, 1, least=width)[-1] >= least
