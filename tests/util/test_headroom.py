"""How much more room than a batch needs."""

import numpy as np

from jitbatch.util.headroom import DEVIATIONS, FEW_FACTOR, headroom


def test_samples_that_are_alike_need_none() -> None:
    assert headroom(np.full((16, 2), 5), 16).tolist() == [1.0, 1.0]


def test_headroom_is_for_deviations_of_the_total() -> None:
    counts = np.array([1, 3] * 8)
    assert headroom(counts, 16) == 1 + DEVIATIONS * np.sqrt(16) / 32
    assert headroom(counts, 64) == 4 + DEVIATIONS * np.sqrt(64) / 32


def test_totals_of_random_batches_fit() -> None:
    rng = np.random.default_rng(0)
    batches = rng.geometric(0.1, size=(400, 64))
    room = max(batches[0].sum(), batches[1].sum()) * headroom(batches[0], 64)
    assert (batches.sum(axis=1) > room).mean() < 0.01


def test_few_samples_tell_little() -> None:
    assert headroom(np.array([3, 3]), 2) == FEW_FACTOR
    assert headroom(np.array([3]), 4) == 4 * FEW_FACTOR


def test_nothing_stays_nothing() -> None:
    assert headroom(np.zeros((16, 1), int), 16).tolist() == [1.0]
