"""The division of a round's nodes into chunks of a few static widths."""

from functools import lru_cache

WIDTHS = (2, 4, 16, 64, 256, 512)
"""The possible widths of chunks. There is no width 1: XLA for CPUs (jax 0.10) fails to compile some programs with such
chunks, "Failed to translate module to LLVM IR"."""

MOST_WIDTHS = 5
"""The largest number of widths in a loop. Each width makes the program longer."""

LAUNCH = 6
"""The fixed cost of a chunk, in rows. A row costs the same at every width: on a CPU, weights stay in the caches from
chunk to chunk (256 x 640: 8 us for one row, 28 for 8, 110 for 32, 430 for 128)."""


@lru_cache(maxsize=4096)
def widths_for(largest: int, least: int = 0) -> tuple[int, ...]:
    """Returns the widths of a loop.

    Args:
        largest: the largest number of nodes of one type in a round.
        least: a lower bound of the largest width.
    """
    widest = max(least, WIDTHS[0], *(width for width in WIDTHS if nodes_for(width) <= largest))
    return tuple(width for width in WIDTHS if width <= widest)[-MOST_WIDTHS:]


@lru_cache(maxsize=64)
def nodes_for(width: int) -> int:
    """Returns the smallest number of nodes whose best chunks include this width."""
    place = WIDTHS.index(width)
    return next(count for count in range(width + 1) if chunks_of(count, WIDTHS)[place])


def most_nodes(width: int) -> int:
    """Returns the largest number of nodes whose best chunks are no wider than this."""
    wider = [nodes_for(other) for other in WIDTHS if other > width]
    return min(wider, default=1 << 31) - 1


def chunks_of(count: int, widths: tuple[int, ...]) -> list[int]:
    """Returns the number of chunks of each width that run `count` nodes at the lowest cost. `widths` are ascending."""
    chunks = list(best_chunks(widths)[count % widths[-1]])
    chunks[-1] += count // widths[-1]
    return chunks


@lru_cache(maxsize=64)
def overshoot(widths: tuple[int, ...]) -> int:
    """Returns the largest number of surplus rows in the chunks of a round."""
    return max(_rows(chunks_of(count, widths), widths) - count for count in range(1, widths[-1] + 1))


def _rows(chunks: list[int], widths: tuple[int, ...]) -> int:
    return sum(many * width for many, width in zip(chunks, widths, strict=True))


@lru_cache(maxsize=64)
def best_chunks(widths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the best chunks for every number of nodes below the largest width."""
    cost = [0] * widths[-1]
    chunks = [(0,) * len(widths)] * widths[-1]
    for count in range(1, widths[-1]):
        options = [LAUNCH + width + cost[max(count - width, 0)] for width in widths]
        choice = options.index(min(options))
        cost[count] = options[choice]
        before = chunks[max(count - widths[choice], 0)]
        chunks[count] = (*before[:choice], before[choice] + 1, *before[choice + 1 :])
    return chunks
