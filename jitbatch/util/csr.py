"""Parts of different lengths in one array, one after the other."""

import numpy as np


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ...`"""
    ends = counts.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
