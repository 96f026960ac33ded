"""Parts of different lengths in one array, one after the other."""

from collections.abc import Sequence

import numpy as np


def offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ...`"""
    ends = counts.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


def cut(array: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """The parts of an array, of its last axis; copies, so that none of them keeps the whole."""
    ends = counts.cumsum().tolist()
    return [array[..., begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]
