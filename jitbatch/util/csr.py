"""Ranges of different lengths, concatenated in one array."""

import numpy as np


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The concatenated ranges `starts[i], starts[i] + 1, ..., starts[i] + counts[i] - 1`."""
    ends = counts.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
