"""The division of a round's nodes into chunks of a few static widths."""

from jitbatch.execute.fused.targets import Target
from jitbatch.util.caches import memoised


@memoised(4096)
def widths_for(target: Target, largest: int, least: int = 0) -> tuple[int, ...]:
    """Returns the widths of a loop.

    Args:
        target: what the program is made for.
        largest: the largest number of nodes of one type in a round.
        least: a lower bound of the largest width.
    """
    above = [width for width in target.widths if width >= least]
    fitting = (width for width in target.widths if nodes_for(target, width) <= largest)
    widest = max([above[0] if above else target.widths[-1], *fitting])
    return tuple(width for width in target.widths if width <= widest)[-target.most_widths :]


@memoised(64)
def nodes_for(target: Target, width: int) -> int:
    """Returns the smallest number of nodes whose best chunks include this width."""
    width_id = target.widths.index(width)
    return next(count for count in range(width + 1) if chunks_of(count, target.widths, target.launch)[width_id])


def most_nodes(target: Target, width: int) -> int:
    """Returns the largest number of nodes whose best chunks are no wider than this."""
    wider = [nodes_for(target, other) for other in target.widths if other > width]
    return min(wider, default=1 << 31) - 1


def chunks_of(count: int, widths: tuple[int, ...], launch: int) -> list[int]:
    """Returns the number of chunks of each width that run `count` nodes at the lowest cost.

    Args:
        count: the number of nodes.
        widths: the widths, ascending.
        launch: the fixed cost of a chunk, in rows.
    """
    chunks = list(best_chunks(widths, launch)[count % widths[-1]])
    chunks[-1] += count // widths[-1]
    return chunks


@memoised(64)
def overshoot(widths: tuple[int, ...], launch: int) -> int:
    """Returns the largest number of surplus rows in the chunks of a round."""
    return max(_rows(chunks_of(count, widths, launch), widths) - count for count in range(1, widths[-1] + 1))


def _rows(chunks: list[int], widths: tuple[int, ...]) -> int:
    return sum(many * width for many, width in zip(chunks, widths, strict=True))


@memoised(64)
def best_chunks(widths: tuple[int, ...], launch: int) -> list[tuple[int, ...]]:
    """Returns the best chunks for every number of nodes below the largest width."""
    cost = [0] * widths[-1]
    chunks = [(0,) * len(widths)] * widths[-1]
    for count in range(1, widths[-1]):
        options = [launch + width + cost[max(count - width, 0)] for width in widths]
        choice = options.index(min(options))
        cost[count] = options[choice]
        before = chunks[max(count - widths[choice], 0)]
        chunks[count] = (*before[:choice], before[choice] + 1, *before[choice + 1 :])
    return chunks
