"""Sums over the readers of a value, two edge rows at a time.

A value with k readers has k edge rows of cotangents. They are summed pair by pair into k - 1 further rows, as a tree,
so that every sum is a gather and a contiguous write, and the cost is linear in the number of readers.
"""

from dataclasses import dataclass

import numpy as np

from jitbatch.util.csr import ranges

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
        pairs = len(self.due)
        is_first = np.ones(pairs, bool)  # of those of one moment and depth
        is_first[1:] = (self.due[1:] != self.due[:-1]) | (self.depth[1:] != self.depth[:-1])
        begin = np.flatnonzero(is_first)
        length = np.append(begin[1:], pairs)[: len(begin)] - begin
        chunks = (length + PAIR_WIDTH - 1) // PAIR_WIDTH
        start = ranges(np.zeros_like(begin), chunks) * PAIR_WIDTH + begin.repeat(chunks)
        # The chunks that are due at each moment; moments go backwards through rounds and types.
        edges = self.due[begin].repeat(chunks).searchsorted(np.arange(rounds * types + 1))
        span = np.zeros((room, types, 2), np.int32)
        span[:rounds, :, 0] = edges[:-1][::-1].reshape(rounds, types)
        span[:rounds, :, 1] = edges[1:][::-1].reshape(rounds, types)
        left, right, starts = (np.zeros(rows, np.int32) for _ in range(3))
        left[:pairs], right[:pairs], starts[: len(start)] = self.left, self.right, start
        return {"pair_left": left, "pair_right": right, "pair_start": starts, "pair_span": span}


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
    begin = count.cumsum() - count
    of_row = np.arange(len(rows)).repeat(count)
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
