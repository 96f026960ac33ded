"""Sets of any number of elements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class NumberSet(NamedTuple):
    """A set of vectors, and a number to predict.

    Attributes:
        elements: float32 [elements, features]; their order has no meaning.
        target: the number.
    """

    elements: np.ndarray
    target: float


def make_maxima(seed: int, sizes: Sequence[int], lengths: tuple[int, int] = (4, 25)) -> list[list[NumberSet]]:
    """Sets of random numbers below 1. The answer is the largest number: the first task of Lee et al., 2019."""
    rng = np.random.default_rng(seed)

    def sample() -> NumberSet:
        elements = rng.random((rng.integers(lengths[0], lengths[1] + 1), 1), np.float32)
        return NumberSet(elements, float(elements.max()))

    return [[sample() for _ in range(size)] for size in sizes]
