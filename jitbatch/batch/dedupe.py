"""Finding equal rows and equal calls, exactly.

Rows are sorted by a hash and neighbours are then compared bit by bit, so that a collision of hashes costs a little time
and never merges two rows that differ.
"""

import itertools

import numpy as np

from jitbatch.batch.fingerprints import digests, mixed
from jitbatch.batch.join import Batch
from jitbatch.util.csr import offsets, ranges


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
    if words.shape[1] == 1 and int(words.max()) < 8 * count:
        return _equal_numbers(words[:, 0])
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
    group = differs.cumsum() - 1
    leader = order[differs]  # the sort is stable, so this is the first appearance
    rank = np.empty(len(leader), np.intp)
    rank[np.argsort(leader)] = np.arange(len(leader))
    which = np.empty(count, np.intp)
    which[order] = rank[group]
    return np.sort(leader), which


def _equal_numbers(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for small numbers, which need not be sorted."""
    own = np.arange(len(numbers))
    appears = np.empty(int(numbers.max()) + 1, np.intp)
    appears[numbers[::-1]] = own[::-1]  # the last entry counts
    leader = appears[numbers]
    is_first = leader == own
    return np.flatnonzero(is_first), (is_first.cumsum() - 1)[leader]


def _as_words(rows: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    raw = flat.view(np.uint8).reshape(len(rows), -1)
    if raw.shape[1] in (1, 2, 4):
        return raw.view(f"u{raw.shape[1]}")
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


def merge_calls(batch: Batch, may_merge: np.ndarray, value_key: np.ndarray) -> np.ndarray:
    """Which nodes compute the same: equal types, equal operands.

    Shapes find all or nearly all of them at once (see `batch/fingerprints`). What they miss is found by comparing
    calls; whatever reads what was merged may be equal then, so that this is repeated until nothing more is found.

    Args:
        batch: the nodes.
        may_merge: bool [types]; see `Cell.may_merge`.
        value_key: int [values]; equal for inputs that are equal, different for what nodes make.

    Returns:
        int [nodes]; the first node that computes the same, often the node itself.
    """
    may_merge = may_merge[batch.type]
    own = np.arange(len(batch.type))
    leader = first_of_equals(digests(batch.shapes, value_key[batch.input_values]), may_merge)
    merged = np.flatnonzero(leader != own)
    key = value_key.copy()
    are_equal = all((one[leader[merged]] == one[merged]).all() for one in (batch.type, batch.level))
    if are_equal:
        values, of_leaders = batch.merged_values(merged, leader)
        key[values] = value_key[of_leaders]
        are_equal = _are_equal(batch, key, merged, leader[merged])
    if not are_equal:  # different shapes or inputs have the same digest
        leader, key = own, value_key.copy()

    left = np.flatnonzero(leader == own)
    total = offsets(mixed(key[batch.operands] ^ batch.place))[batch.operand_start]
    words = mixed(total[1:] - total[:-1] + batch.type)
    first = left[first_of_equals(words[left], may_merge[left])]
    is_merged = first != left
    if not is_merged.any():
        return leader
    nodes, first = left[is_merged], first[is_merged]
    if not _are_equal(batch, key, nodes, first):  # different calls have the same digest
        nodes = left[may_merge[left]]
        first = _first_equal(batch, key, nodes)
    return _merge_readers(batch, key, may_merge, leader, nodes, first)


FEW = 4
"""So many times all operands are looked through for those that read what was merged; then they are sorted for it."""


def _merge_readers(
    batch: Batch, key: np.ndarray, may_merge: np.ndarray, leader: np.ndarray, nodes: np.ndarray, first: np.ndarray
) -> np.ndarray:
    """The leaders of all nodes, where some nodes turned out to be equal to the first of them. Only what reads these, or
    what they are equal to, is looked at again: a chain may be found node by node."""
    order = begin = None
    for number in itertools.count():
        is_merged = first != nodes
        if not is_merged.any():
            return leader
        now = np.arange(len(leader))
        now[nodes] = first
        leader = now[leader]
        is_changed = np.zeros(len(leader), bool)
        is_changed[first[is_merged]] = True
        changed = np.flatnonzero(is_changed[leader])
        made = batch.made[batch.type[changed]]
        values = ranges(batch.first_value[changed], made)
        key[values] = key[ranges(batch.first_value[leader[changed]], made)]
        if number < FEW:
            is_read = np.zeros(batch.values, bool)
            is_read[values] = True
            some = np.flatnonzero(is_read[batch.operands])
        else:
            if order is None or begin is None:
                order = np.argsort(batch.operands, kind="stable")
                begin = np.searchsorted(batch.operands[order], np.arange(batch.values + 1))
            some = order[ranges(begin[values], begin[values + 1] - begin[values])]
        is_reader = np.zeros(len(leader), bool)
        is_reader[batch.operand_start.searchsorted(some, side="right") - 1] = True
        nodes = np.flatnonzero(is_reader & may_merge)
        nodes = nodes[leader[nodes] == nodes]
        first = _first_equal(batch, key, nodes)
    raise AssertionError("there is no end to counting")


def _first_equal(batch: Batch, key: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """int [nodes]; the first of some nodes that is the same call."""
    start = batch.operand_start
    counts = batch.arity[nodes]
    at = ranges(start[nodes], counts)
    total = offsets(mixed(key[batch.operands[at]] ^ batch.place[at]))[offsets(counts)]
    first = nodes[first_of_equals(mixed(total[1:] - total[:-1] + batch.type[nodes]))]
    is_other = first != nodes
    if _are_equal(batch, key, nodes[is_other], first[is_other]):
        return first
    # Different calls have the same digest: compare them as they are.
    first = nodes.copy()
    for count in np.unique(counts):
        here = np.flatnonzero(counts == count)
        keys = key[batch.operands[start[nodes[here]][:, None] + np.arange(count)]]
        leaders, which = equal_rows(np.column_stack([batch.type[nodes[here]], keys]))
        first[here] = nodes[here[leaders[which]]]
    return first


def _are_equal(batch: Batch, key: np.ndarray, nodes: np.ndarray, others: np.ndarray) -> bool:
    """Whether nodes are of the types of some others and read values of the same keys."""
    start = batch.operand_start
    counts = batch.arity[nodes]
    if np.any(batch.type[nodes] != batch.type[others]) or np.any(counts != batch.arity[others]):
        return False
    ours, theirs = (batch.operands[ranges(start[some], counts)] for some in (nodes, others))
    return np.array_equal(key[ours], key[theirs])


def first_of_equals(words: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """int [words]; where each word appears first, or first among some of them; for the others their own place."""
    own = np.arange(len(words))
    if among is not None and not among.all():
        some = np.flatnonzero(among)
        own[some] = some[first_of_equals(words[some])]
        return own
    # A table of where the words with the same lowest bits begin; only those that differ from the first are sorted.
    slots = 2 << len(words).bit_length()
    slot = words & (slots - 1)
    begins = np.empty(slots, np.int64)
    begins[slot[::-1]] = own[::-1]  # the last entry counts
    first = begins[slot]
    others = np.flatnonzero(words[first] != words)
    if len(others):
        others = others[words[others].argsort(kind="stable")]
        left = words[others]
        is_new = np.ones(len(left), bool)
        np.not_equal(left[1:], left[:-1], out=is_new[1:])
        first[others] = others[is_new.nonzero()[0]][is_new.cumsum() - 1]
    return first
