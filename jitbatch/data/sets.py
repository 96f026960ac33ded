"""Sets of any number of elements."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class NumberSet(NamedTuple):
    """Elements without an order, float32 [elements, features], and a number that is asked of them."""

    elements: np.ndarray
    target: float


def make_maxima(seed: int, sizes: Sequence[int], lengths: tuple[int, int] = (4, 25)) -> list[list[NumberSet]]:
    """Sets of random numbers below 1, of which the largest is asked: the first task of Lee et al., 2019.

    Args:
        seed: equal seeds make equal sets.
        sizes: how many samples each set of samples has.
        lengths: the least and the largest number of elements.

    >>> ((one,),) = make_maxima(0, [1], lengths=(2, 2))
    >>> one.elements.shape, bool(one.target == one.elements.max())
    ((2, 1), True)
    """
    rng = np.random.default_rng(seed)

    def sample() -> NumberSet:
        elements = rng.random((rng.integers(lengths[0], lengths[1] + 1), 1), np.float32)
        return NumberSet(elements, float(elements.max()))

    return [[sample() for _ in range(size)] for size in sizes]
