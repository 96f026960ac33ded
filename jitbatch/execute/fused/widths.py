"""How the nodes of a round are cut into chunks of a few static widths."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

WIDTHS = (2, 4, 16, 64, 256, 512)
"""The widths that chunks can have. None is 1: XLA for CPUs (jax 0.10) fails to compile some programs with such chunks,
"Failed to translate module to LLVM IR"."""

MOST_WIDTHS = 5
"""How many widths a loop has at most: each is a part of the program."""

LAUNCH = 6
"""A chunk costs about as much as this many rows, before its first row. A row costs the same at every width: on a CPU,
weights stay in the caches from chunk to chunk (256 x 640: 8 us for one row, 28 for 8, 110 for 32, 430 for 128)."""


@lru_cache(maxsize=4096)
def widths_for(largest: int, least: int = 0) -> tuple[int, ...]:
    """The widths of a loop with up to so many nodes of a type in a round, and with room for chunks of `least`."""
    used = chunks_of(np.arange(min(largest, WIDTHS[-1]) + 1), WIDTHS).any(axis=0)
    widest = max(least, WIDTHS[0], *np.array(WIDTHS)[used].tolist())
    return tuple(width for width in WIDTHS if width <= widest)[-MOST_WIDTHS:]


def chunks_of(counts: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """int [counts, widths]; how many chunks of each width run so many nodes at the lowest cost. `widths` ascend."""
    largest = widths[-1]
    best = _best(tuple(widths))
    chunks = best[counts % largest].copy()
    chunks[:, -1] += counts // largest
    return chunks


@lru_cache(maxsize=64)
def overshoot(widths: tuple[int, ...]) -> int:
    """How many rows chunks have at most beyond the nodes they run."""
    counts = np.arange(1, widths[-1] + 1)
    return int((chunks_of(counts, widths) @ np.array(widths) - counts).max())


@lru_cache(maxsize=64)
def _best(widths: tuple[int, ...]) -> np.ndarray:
    """The best chunks for fewer nodes than the largest width."""
    cost = np.zeros(widths[-1], np.int64)
    chunks = np.zeros((widths[-1], len(widths)), np.int64)
    for count in range(1, widths[-1]):
        options = [LAUNCH + width + (cost[count - width] if width < count else 0) for width in widths]
        choice = int(np.argmin(options))
        cost[count] = options[choice]
        chunks[count] = chunks[max(count - widths[choice], 0)]
        chunks[count, choice] += 1
    return chunks
