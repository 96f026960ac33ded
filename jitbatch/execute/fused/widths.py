"""How the nodes of a round are cut into chunks of a few static widths."""

from functools import lru_cache

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
    widest = max(least, WIDTHS[0], *(width for width in WIDTHS if nodes_for(width) <= largest))
    return tuple(width for width in WIDTHS if width <= widest)[-MOST_WIDTHS:]


@lru_cache(maxsize=64)
def nodes_for(width: int) -> int:
    """The smallest number of nodes that is run with a chunk of this width."""
    place = WIDTHS.index(width)
    return next(count for count in range(width + 1) if chunks_of(count, WIDTHS)[place])


def most_nodes(width: int) -> int:
    """How many nodes a round can have at most without a chunk that is wider than this."""
    wider = [nodes_for(other) for other in WIDTHS if other > width]
    return min(wider, default=1 << 31) - 1


def chunks_of(count: int, widths: tuple[int, ...]) -> list[int]:
    """How many chunks of each width run so many nodes at the lowest cost. `widths` ascend."""
    chunks = list(best_chunks(widths)[count % widths[-1]])
    chunks[-1] += count // widths[-1]
    return chunks


@lru_cache(maxsize=64)
def overshoot(widths: tuple[int, ...]) -> int:
    """How many rows chunks have at most beyond the nodes they run."""
    return max(_rows(chunks_of(count, widths), widths) - count for count in range(1, widths[-1] + 1))


def _rows(chunks: list[int], widths: tuple[int, ...]) -> int:
    return sum(many * width for many, width in zip(chunks, widths, strict=True))


@lru_cache(maxsize=64)
def best_chunks(widths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The best chunks for every number of nodes below the largest width."""
    cost = [0] * widths[-1]
    chunks = [(0,) * len(widths)] * widths[-1]
    for count in range(1, widths[-1]):
        options = [LAUNCH + width + cost[max(count - width, 0)] for width in widths]
        choice = options.index(min(options))
        cost[count] = options[choice]
        before = chunks[max(count - widths[choice], 0)]
        chunks[count] = (*before[:choice], before[choice] + 1, *before[choice + 1 :])
    return chunks
