"""Headroom: the factor between the room that one batch needs and the capacity of a plan, so that later batches fit."""

import numpy as np

DEVIATIONS = 3.0
"""Headroom in standard deviations of a batch's total. With this headroom, a run of 400 minibatches has an even chance
that all of them fit."""

FEW_SAMPLES, FEW_FACTOR = 8, 1.5
"""Below this number of samples the deviation is not known well: the total then grows by this factor."""


def headroom(counts: np.ndarray, samples: int) -> np.ndarray:
    """The factor by which to enlarge the total of some counts, so that batches of `samples` samples fit.

    The standard deviation of a total is the standard deviation of one sample times the square root of the number of
    samples.

    Args:
        counts: int [samples, ...]; a count for each sample of a batch, such as its nodes of one type.
        samples: the number of samples of the batches that must fit.
    """
    have = len(counts)
    more = max(samples, have) / have
    if have < FEW_SAMPLES:
        return np.full(counts.shape[1:], FEW_FACTOR * more)
    deviation = counts.std(axis=0) * np.sqrt(more * have)
    return more + DEVIATIONS * deviation / np.maximum(counts.sum(axis=0), 1)
