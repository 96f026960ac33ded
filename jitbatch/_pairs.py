"""Sums over the readers of a value, two edge rows at a time.

A value with k readers has k edge rows of cotangents. They are summed pair by pair into k - 1 further rows, as a tree,
so that every sum is a gather and a contiguous write, and the cost is linear in the number of readers.
"""

from dataclasses import dataclass

import numpy as np

PAIR_WIDTH = 32
"""How many pairs of edge rows are summed at once."""


@dataclass(frozen=True, eq=False)
class PairSums:
    """Sums of pairs of edge rows.

    Attributes:
        edge_of_row: int [rows of the arena]; the edge row with the whole cotangent of each row, 0 for none.
        left, right: int [pairs]; the edge rows that are summed into each further edge row.
        due: int [pairs]; when each is needed.
        depth: int [pairs]; a pair reads only pairs of lower depth.
    """

    edge_of_row: np.ndarray
    left: np.ndarray
    right: np.ndarray
    due: np.ndarray
    depth: np.ndarray

    def fitted(self, rows: int, rounds: int, room: int, types: int) -> dict[str, np.ndarray]:
        """Tables of the sizes that a program has room for: the pairs in chunks that read no pair of their own."""
        segment = self.due * (self.depth.max(initial=0) + 1) + self.depth
        begin = np.flatnonzero(np.diff(segment, prepend=-1))
        length = np.diff(np.append(begin, len(segment)))
        chunks = -(-length // PAIR_WIDTH)
        within = np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        start = np.repeat(begin, chunks) + within * PAIR_WIDTH
        chunk_due = np.repeat(self.due[begin], chunks)
        moments = np.arange(rounds * types + 2)
        edges = np.searchsorted(chunk_due, moments)
        span = np.zeros((room, types, 2), np.int64)
        when = (rounds - 1 - np.arange(rounds))[:, None] * types + (types - 1 - np.arange(types))[None]
        span[:rounds, :, 0], span[:rounds, :, 1] = edges[when], edges[when + 1]
        padded = np.zeros((2, rows), np.int64)
        padded[:, : len(self.left)] = self.left, self.right
        room_for_chunks = np.zeros(rows, np.int64)
        room_for_chunks[: len(start)] = start
        return {
            "pair_left": padded[0].astype(np.int32),
            "pair_right": padded[1].astype(np.int32),
            "pair_start": room_for_chunks.astype(np.int32),
            "pair_span": span.astype(np.int32),
            "pair_last": edges[[rounds * types, rounds * types + 1]].astype(np.int32),
        }


def pair_sums(target: np.ndarray, source: np.ndarray, due_of_row: np.ndarray, first_pair: int) -> PairSums:
    """Sum the edge rows `source` of each row `target`, two by two."""
    edge_of_row = np.zeros(len(due_of_row), np.int64)
    lefts, rights, dues, depths = [], [], [], []
    count = depth = 0
    order = np.argsort(target, kind="stable")
    target, source = target[order], source[order]
    while True:
        start = np.concatenate([[True], target[1:] != target[:-1]]) if len(target) else np.zeros(0, bool)
        begin = np.flatnonzero(start)
        rank = np.arange(len(target)) - np.repeat(begin, np.diff(np.append(begin, len(target))))
        has_next = np.append(~start[1:], False) if len(target) else np.zeros(0, bool)
        left = np.flatnonzero((rank % 2 == 0) & has_next)
        if not len(left):
            break
        lefts.append(source[left])
        rights.append(source[left + 1])
        dues.append(due_of_row[target[left]])
        depths.append(np.full(len(left), depth))
        source = source.copy()
        source[left] = -1 - (count + np.arange(len(left)))  # a pair, to be numbered below
        keep = rank % 2 == 0
        target, source = target[keep], source[keep]
        count += len(left)
        depth += 1
    if not count:
        edge_of_row[target] = source
        empty = np.zeros(0, np.int64)
        return PairSums(edge_of_row, empty, empty, empty, empty)
    left, right, due, depth_of = map(np.concatenate, (lefts, rights, dues, depths))
    order = np.lexsort((depth_of, due))
    number = np.empty(count, np.int64)
    number[order] = np.arange(count)

    def final(edges: np.ndarray) -> np.ndarray:
        return np.where(edges < 0, first_pair + number[np.where(edges < 0, -1 - edges, 0)], edges)

    edge_of_row[target] = final(source)
    return PairSums(edge_of_row, final(left)[order], final(right)[order], due[order], depth_of[order])
