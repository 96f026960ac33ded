"""Parts of different lengths, one after the other."""

from __future__ import annotations

import numpy as np

from jitbatch.util.csr import ranges


def test_ranges() -> None:
    assert ranges(np.array([5, 1, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]
    assert ranges(np.zeros(0, int), np.zeros(0, int)).tolist() == []
