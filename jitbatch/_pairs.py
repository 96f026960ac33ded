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
        moments = np.arange(rounds * types + 1)
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
        }


def pair_sums(target: np.ndarray, source: np.ndarray, due_of_row: np.ndarray, first_pair: int) -> PairSums:
    """Sum the edge rows `source` of each row `target`, two by two.

    The edge rows of a target and the sums of pairs of them are a binary heap: of k edge rows, pair number p (0 is the
    whole sum) adds the heap's items 2p + 1 and 2p + 2, of which the first k - 1 are pairs and the others edge rows.
    """
    edge_of_row = np.zeros(len(due_of_row), np.int64)
    readers = np.bincount(target, minlength=len(due_of_row))
    edge_of_row[target] = source  # right where there is one reader
    several = np.flatnonzero(readers[target] > 1)
    if not len(several):
        empty = np.zeros(0, np.int64)
        return PairSums(edge_of_row, empty, empty, empty, empty)
    edges = source[several[stable_order(target[several], len(due_of_row))]]
    rows = np.flatnonzero(readers > 1)
    count = readers[rows] - 1  # pairs of each row
    begin = np.cumsum(count) - count
    of_row = np.repeat(np.arange(len(rows)), count)
    heap = np.arange(len(of_row)) - begin[of_row]
    depth = int(count.max()).bit_length() - _bit_length(heap + 1)
    due = due_of_row[rows][of_row]
    order = stable_order(due * (depth.max() + 1) + depth, (int(due.max()) + 1) * (int(depth.max()) + 1))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    # Items of a heap that are edge rows lie behind its pairs; before row i of `rows` come i more edge rows than pairs.
    item = 2 * heap[order] + 1
    row = of_row[order]

    def edge(item: np.ndarray) -> np.ndarray:
        is_pair = item < count[row]
        pair = number[np.where(is_pair, begin[row] + item, 0)]
        return np.where(is_pair, first_pair + pair, edges[np.where(is_pair, 0, begin[row] + row + item - count[row])])

    edge_of_row[rows] = first_pair + number[begin]
    return PairSums(edge_of_row, edge(item), edge(item + 1), due[order], depth[order])


def _bit_length(numbers: np.ndarray) -> np.ndarray:
    """How many bits numbers from 1 to 2**52 have."""
    return np.frexp(numbers.astype(np.float64))[1]


def stable_order(numbers: np.ndarray, bound: int) -> np.ndarray:
    """The stable order of numbers from 0 up to a bound; small ones are sorted digit by digit, which is faster."""
    return np.argsort(numbers.astype(np.uint16) if bound <= 1 << 16 else numbers, kind="stable")
