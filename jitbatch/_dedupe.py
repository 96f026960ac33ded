"""Finding equal rows and equal calls, exactly.

Rows are sorted by a hash and neighbours are then compared bit by bit, so that a collision of hashes costs a little time
and never merges two rows that differ.
"""

import numpy as np

from jitbatch._concat import offsets, ranges


def equal_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of an array, bit by bit, and for each row which of them it is.

    Returns:
        first: int [distinct]; where each distinct row appears first, in the order of appearance.
        which: int [rows]; the number of each row among the distinct ones.
    """
    count = len(rows)
    if count < 2 or rows.size == 0:
        return np.zeros(min(count, 1), np.intp), np.zeros(count, np.intp)
    words = _as_words(rows)
    digest = words[:, 0] if words.shape[1] == 1 else _hash_rows(words)
    order = np.argsort(digest, kind="stable")
    digest = digest[order]
    differs = np.concatenate([[True], digest[1:] != digest[:-1]])
    if words.shape[1] > 1:
        same_digest = np.flatnonzero(~differs)
        unequal = np.any(words[order[same_digest]] != words[order[same_digest - 1]], axis=1)
        if unequal.any():  # a collision: sort by the rows themselves
            order = np.lexsort(words.T[::-1])
            differs = np.concatenate([[True], np.any(words[order[1:]] != words[order[:-1]], axis=1)])
    group = np.cumsum(differs) - 1
    leader = order[differs]  # the sort is stable, so this is the first appearance
    rank = np.empty(len(leader), np.intp)
    rank[np.argsort(leader)] = np.arange(len(leader))
    which = np.empty(count, np.intp)
    which[order] = rank[group]
    return np.sort(leader), which


def _as_words(rows: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    raw = flat.view(np.uint8).reshape(len(rows), -1)
    padding = -raw.shape[1] % 8
    if padding:
        raw = np.concatenate([raw, np.zeros((len(rows), padding), np.uint8)], axis=1)
    return np.ascontiguousarray(raw).view(np.uint64)


def _hash_rows(words: np.ndarray) -> np.ndarray:
    digest = np.zeros(len(words), np.uint64)
    for column in words.T:
        digest ^= column
        digest *= np.uint64(0x9E3779B97F4A7C15)
        digest ^= digest >> np.uint64(29)
    return digest


def merge_calls(
    kind: np.ndarray, level: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, by_value: np.ndarray,
    is_single: np.ndarray, first_value: np.ndarray, made: np.ndarray, may_merge: np.ndarray, value_key: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Which nodes compute the same: equal kinds, equal operands.

    Two calls can be equal only if each thing that one of them reads is read by another call of its kind in the same
    place. At first these are calls on inputs, and on values that a sample uses several times; then the readers of what
    was merged join them. Where samples have nothing in common, such as random keys of their own, nothing is compared.

    Args:
        kind, level, operand_start, operands: of all nodes of a batch; `operands` are values.
        by_value: int [operands]; where in `operands` each value is read, in the order of the values.
        is_single: bool [operands]; see `Batch`.
        first_value: int [nodes]; the first value each node makes.
        made: int [kinds]; how many values a node of each kind makes.
        may_merge: bool [kinds]; see `Cell.may_merge`.
        value_key: int [values]; equal for inputs that are equal, different for what nodes make.

    Returns:
        int [nodes]; the first node that computes the same, often the node itself.
    """
    calls = _Calls(kind, operand_start, operands, is_single, value_key.copy())
    leader = np.arange(len(kind))
    pending = (calls.alone == 0) & may_merge[kind]
    first_read = offsets(np.bincount(operands, minlength=len(value_key)))
    while True:
        waiting = np.flatnonzero(pending)
        if len(waiting) < 2:
            return leader
        # Levels ascend, so that all that a node reads is merged before it is looked at.
        of_level = level[waiting]
        nodes = waiting[of_level == of_level.min()]
        pending[nodes] = False
        leaders, has_equal = calls.first_equal(nodes)
        nodes, leaders = nodes[has_equal], leaders[has_equal]
        if not len(nodes):
            continue
        leader[nodes] = leaders
        count, first = made[kind[nodes]], first_value[nodes]
        calls.key[ranges(first, count)] = calls.key[ranges(first_value[leaders], count)]
        begin = first_read[first]
        readers = calls.not_alone(by_value[ranges(begin, first_read[first + count] - begin)])
        pending[readers[may_merge[kind[readers]]]] = True


class _Calls:
    """Calls and their operands by key.

    Attributes:
        key: int [values].
        alone: int [nodes]; how many operands of each node no other call of its kind reads in that place.
    """

    def __init__(
        self, kind: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, is_single: np.ndarray,
        value_key: np.ndarray,
    ):  # fmt: skip
        self.kind, self.start, self.operands, self.key = kind, operand_start, operands, value_key
        self.counts = np.diff(operand_start)
        self.reader = np.repeat(np.arange(len(kind)), self.counts)
        column = np.arange(len(operands)) - np.repeat(operand_start[:-1], self.counts)
        self.place = _mixed((column << 20) + kind[self.reader])
        # Which inputs are read twice in the same place is told by a table of counts. That two of them fall together
        # in it does no harm: calls are compared before they are merged.
        self.is_alone = is_single.copy()
        given = np.flatnonzero(~is_single)
        slot = _mixed(self.key[operands[given]] + self.place[given]) & ((4 << len(given).bit_length()) - 1)
        self.is_alone[given] = (np.bincount(slot, minlength=1) < 2)[slot]
        self.alone = np.bincount(self.reader[self.is_alone], minlength=len(kind))

    def first_equal(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of some nodes, the first of them that is the same call; and whether there is more than one."""
        counts = self.counts[nodes]
        edges = ranges(self.start[nodes], counts)
        keys = self.key[self.operands[edges]]
        ends = np.cumsum(counts)
        total = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(_mixed(keys ^ self.place[edges]), out=total[1:])
        digest = _mixed(total[ends] - total[ends - counts] + self.kind[nodes])
        order = np.argsort(digest, kind="stable")
        digest = digest[order]
        is_same = np.zeros(len(nodes) + 1, bool)
        is_same[1:-1] = digest[1:] == digest[:-1]
        leaders = nodes.copy()
        first = np.flatnonzero(~is_same[:-1])
        leaders[order] = nodes[np.repeat(order[first], np.diff(first, append=len(nodes)))]
        has_equal = np.zeros(len(nodes), bool)
        has_equal[order] = is_same[:-1] | is_same[1:]
        if not self._are_equal(nodes[has_equal], leaders[has_equal]):
            return self._first_equal_by_rows(nodes)
        return leaders, has_equal

    def _are_equal(self, nodes: np.ndarray, others: np.ndarray) -> bool:
        counts = self.counts[nodes]
        if np.any(self.kind[nodes] != self.kind[others]) or np.any(counts != self.counts[others]):
            return False
        ours, theirs = (self.operands[ranges(self.start[some], counts)] for some in (nodes, others))
        return np.array_equal(self.key[ours], self.key[theirs])

    def _first_equal_by_rows(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same without digests, for when two calls have the same digest."""
        leaders = nodes.copy()
        for count in np.unique(self.counts[nodes]):
            here = np.flatnonzero(self.counts[nodes] == count)
            keys = self.key[self.operands[self.start[nodes[here]][:, None] + np.arange(count)]]
            first, which = equal_rows(np.column_stack([self.kind[nodes[here]], keys]))
            leaders[here] = nodes[here][first[which]]
        return leaders, np.isin(leaders, leaders[leaders != nodes])

    def not_alone(self, edges: np.ndarray) -> np.ndarray:
        """Note that what some edges read is read elsewhere, too; the readers of which that is all that was missing."""
        newly = self.reader[edges[self.is_alone[edges]]]
        np.subtract.at(self.alone, newly, 1)
        readers = self.reader[edges]
        return readers[self.alone[readers] == 0]


_ODD = -0x61C8864680B583EB  # as a 64-bit word, an odd number with bits all over


def _mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> 31)) * _ODD
    return words ^ (words >> 29)
