"""Headroom: how much more room than one batch needs, so that the next batches of its kind fit as well."""

import numpy as np

DEVIATIONS = 3.0
"""Room is left for this many standard deviations of a batch's total. Of 400 minibatches, half of the time none needs
more."""

FEW_SAMPLES, FEW_FACTOR = 8, 1.5
"""Fewer samples say little about how much samples differ: room then grows by this factor."""


def headroom(counts: np.ndarray, samples: int) -> np.ndarray:
    """The factor by which to enlarge the total of some counts, so that batches of so many samples fit.

    Args:
        counts: int [samples, ...]; how many of something each sample of a batch has. The standard deviation of a total
            is that of one sample times the square root of their number.
        samples: the number of samples that there is to be room for.
    """
    have = len(counts)
    more = max(samples, have) / have
    if have < FEW_SAMPLES:
        return np.full(counts.shape[1:], FEW_FACTOR * more)
    deviation = counts.std(axis=0) * np.sqrt(more * have)
    return more + DEVIATIONS * deviation / np.maximum(counts.sum(axis=0), 1)
