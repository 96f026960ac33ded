"""Finding equal rows and equal calls, exactly.

Rows are sorted by a hash and neighbours are then compared bit by bit, so that a collision of hashes costs a little time
and never merges two rows that differ.
"""

import numpy as np


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
    kind: np.ndarray, level: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, first_value: np.ndarray,
    outputs: np.ndarray, may_merge: np.ndarray, value_key: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Which nodes compute the same: equal kinds, equal operands.

    Args:
        kind, level, operand_start, operands: of all nodes of a batch; `operands` are values.
        first_value: int [nodes]; the first value each node makes.
        outputs: int [kinds]; how many values a node of each kind makes.
        may_merge: bool [kinds]; see `Cell.may_merge`.
        value_key: int [values]; equal for inputs that are equal.

    Returns:
        int [nodes]; the first node that computes the same, often the node itself.
    """
    leader = np.arange(len(kind))
    value_key = value_key.copy()
    counts = np.diff(operand_start)
    mergeable = np.flatnonzero(may_merge[kind])
    if not len(mergeable):
        return leader
    most = int(counts.max()) + 1  # calls of one kind may read different numbers of values
    bucket = (level[mergeable].astype(np.int64) * len(may_merge) + kind[mergeable]) * most + counts[mergeable]
    order = np.argsort(bucket, kind="stable")
    edges = np.flatnonzero(np.diff(bucket[order])) + 1
    # How often each key is read. Calls can be equal only if all they read is read more than once: where samples have
    # random keys of their own, nothing further is compared.
    reads = np.bincount(value_key[operands], minlength=int(value_key.max(initial=0)) + 1)
    for nodes in np.split(mergeable[order], edges):  # levels ascending, so operands are merged already
        columns = np.arange(int(counts[nodes[0]]))
        keys = value_key[operands[operand_start[nodes][:, None] + columns]]
        shared = np.all(reads[keys] > 1, axis=1)
        nodes, keys = nodes[shared], keys[shared]
        first, which = equal_rows(keys)
        if len(first) == len(nodes):
            continue
        leaders = nodes[first][which]
        merged = np.flatnonzero(leaders != nodes)
        leader[nodes] = leaders
        for output in range(outputs[kind[nodes[0]]]):
            own, new = value_key[first_value[nodes[merged]] + output], value_key[first_value[leaders[merged]] + output]
            np.add.at(reads, new, reads[own])
            value_key[first_value[nodes[merged]] + output] = new
    return leader
