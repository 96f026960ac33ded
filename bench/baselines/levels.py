"""Tree-LSTMs batched by hand, level by level.

Nodes are sorted by their depth from the root, so that a level reads nothing but the one below it: what a scan carries
is one level, not a buffer of all states (whose gradient XLA would copy at each level). Inputs are projected before the
scans, once for each distinct word, and states are read out after them. A scan runs over a few levels of one width, so
that the narrow bottom of a minibatch is not padded to the width of its middle; with one level a scan the program is
unrolled. Widths are rounded up and fitted to many minibatches, so that all of them run one program.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]


class Sizes(NamedTuple):
    """What tables are padded to: for each scan, from the roots downwards, the width of a level; distinct words."""

    per_scan: int  # levels in a scan
    widths: tuple[int, ...]
    leaf_widths: tuple[int, ...]
    tokens: int


def round_up(n: int) -> int:
    """To a number that has at most an eighth of padding and is a multiple of 8."""
    unit = max(8, 1 << max(n - 1, 0).bit_length() >> 4)
    return max(-(-n // unit) * unit, unit)


def _fit(counts: Sequence[Sequence[int]], per_scan: int) -> tuple[int, ...]:
    """The width of each scan's levels for minibatches with so many nodes in each level; upper scans are no narrower."""
    scans = max(-(-max(map(len, counts)) // per_scan), 1)
    widest = np.zeros(scans * per_scan, int)
    for one in counts:
        widest[: len(one)] = np.maximum(widest[: len(one)], one)
    by_scan = widest.reshape(scans, per_scan).max(axis=1)
    return tuple(round_up(int(n)) for n in np.maximum.accumulate(by_scan[::-1])[::-1])


def _distinct(tokens: Sequence[int], size: int) -> tuple[np.ndarray, dict[int, int]]:
    known = np.unique(np.asarray(tokens, np.int32))
    return np.pad(known, (0, size - len(known))), {int(token): row for row, token in enumerate(known)}


def padding_of(sizes: Sizes, rows: int) -> float:
    """The part of the rows of all levels that is padding, given how many rows a minibatch needs."""
    return 1 - rows / (sizes.per_scan * sum(sizes.widths))


def _pad_rows(x: jax.Array, rows: int) -> jax.Array:
    return jnp.pad(x, ((0, rows - len(x)), (0, 0)))


# --- Binary trees with a class for each node


class BinaryScan(NamedTuple):
    """Some consecutive levels, the lowest first; a row of a level is a branch.

    Attributes:
        children: int32 [levels, 2, width], rows of the level below: its branches, then its leaves.
        leaves: int32 [levels, leaf width], the leaves of the level below as positions among the distinct words.
        labels: int32 [levels, width], -1 for padding.
    """

    children: np.ndarray
    leaves: np.ndarray
    labels: np.ndarray


class BinaryTables(NamedTuple):
    """A minibatch, the lowest scan first. Roots are rows of the top level, then distinct words."""

    tokens: np.ndarray
    scans: tuple[BinaryScan, ...]
    roots: np.ndarray
    root_labels: np.ndarray
    leaves: np.ndarray  # all leaves, as positions among the distinct words
    leaf_labels: np.ndarray  # -1 for padding


class _BinaryLevels:
    """The nodes of a minibatch by depth; leaves are referred to by the complement of their position in their level."""

    def __init__(self, sentences: Sequence[Any]):
        self.branches: list[list[tuple[int, int, int]]] = []  # left, right, label
        self.leaves: list[list[tuple[int, int]]] = []  # token, label
        self.roots = [self._add(sentence.tree, iter(sentence.labels), 0) for sentence in sentences]
        self.root_labels = np.array([sentence.labels[-1] for sentence in sentences], np.int32)
        self.tokens = [token for level in self.leaves for token, _ in level]

    def _add(self, tree: Any, labels: Any, depth: int) -> int:
        if len(self.branches) == depth:
            self.branches.append([])
            self.leaves.append([])
        if not isinstance(tree, tuple):
            self.leaves[depth].append((tree, next(labels)))
            return ~(len(self.leaves[depth]) - 1)
        left, right = (self._add(child, labels, depth + 1) for child in tree)
        self.branches[depth].append((left, right, next(labels)))
        return len(self.branches[depth]) - 1


def fit_binary(batches: Sequence[Sequence[Any]], per_scan: int) -> Sizes:
    levels = [_BinaryLevels(batch) for batch in batches]
    return Sizes(
        per_scan,
        _fit([[len(level) for level in one.branches[:-1]] for one in levels], per_scan),
        _fit([[len(level) for level in one.leaves[1:]] for one in levels], per_scan),
        max(round_up(len(set(one.tokens))) for one in levels),
    )


def prepare_binary(sentences: Sequence[Any], sizes: Sizes) -> BinaryTables:
    levels = _BinaryLevels(sentences)
    tokens, row_of = _distinct(levels.tokens, sizes.tokens)
    scans = []
    for number, (width, leaf_width) in enumerate(zip(sizes.widths, sizes.leaf_widths, strict=True)):
        children = np.zeros((sizes.per_scan, 2, width), np.int32)
        leaves = np.zeros((sizes.per_scan, leaf_width), np.int32)
        labels = np.full((sizes.per_scan, width), -1, np.int32)
        for step in range(sizes.per_scan):
            depth = (number + 1) * sizes.per_scan - 1 - step
            if depth >= len(levels.branches) - 1:
                continue
            if here := levels.branches[depth]:
                *pair, labels[step, : len(here)] = np.array(here, np.int32).T
                children[step, :, : len(here)] = np.where(np.less(pair, 0), width + np.invert(pair), pair)
            words = levels.leaves[depth + 1]
            leaves[step, : len(words)] = [row_of[token] for token, _ in words]
        scans.append(BinaryScan(children, leaves, labels))
    all_leaves = [leaf for level in levels.leaves for leaf in level]
    padding = sum(sizes.per_scan * width for width in sizes.leaf_widths) + len(sentences) - len(all_leaves)
    top = sizes.widths[0]
    roots = [root if root >= 0 else top + row_of[levels.leaves[0][~root][0]] for root in levels.roots]
    return BinaryTables(
        tokens,
        tuple(reversed(scans)),
        np.array(roots, np.int32),
        levels.root_labels,
        np.pad(np.array([row_of[token] for token, _ in all_leaves], np.int32), (0, padding)),
        np.pad(np.array([label for _, label in all_leaves], np.int32), (0, padding), constant_values=-1),
    )


def _gates(i: jax.Array, o: jax.Array, u: jax.Array, kept: Any = 0.0) -> tuple[jax.Array, jax.Array]:
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _classify(params: Params, h: jax.Array, labels: np.ndarray) -> jax.Array:
    """The sum of the losses of the rows whose label is not -1."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(h @ params["out"]), jnp.maximum(labels, 0)[..., None], axis=-1)
    return -jnp.where(labels >= 0, chosen[..., 0], 0).sum()


def binary_loss(params: Params, tables: BinaryTables, every_node: bool) -> jax.Array:
    """The mean loss of a minibatch, at the roots or at all nodes."""
    hidden = params["out"].shape[0]
    weights = jnp.concatenate([params["left"], params["right"]])
    leaf_h, leaf_c = _gates(*jnp.split(params["embed"][tables.tokens] @ params["leaf"], 3, axis=-1))
    leaf_states = jnp.concatenate([leaf_h, leaf_c], axis=-1)

    def level(below: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        children, leaves = step
        left, right = jnp.concatenate([below, leaves])[children]
        both = jnp.concatenate([left[:, :hidden], right[:, :hidden]], axis=-1)
        i, fl, fr, o, u = jnp.split(both @ weights + params["bias"], 5, axis=-1)
        kept = jax.nn.sigmoid(fl) * left[:, hidden:] + jax.nn.sigmoid(fr) * right[:, hidden:]
        h, c = _gates(i, o, u, kept)
        return jnp.concatenate([h, c], axis=-1), h

    state = jnp.zeros((0, 2 * hidden))
    total = jnp.float32(0)
    for scan in tables.scans:
        state = _pad_rows(state, scan.children.shape[-1])
        state, h = jax.lax.scan(level, state, (jnp.asarray(scan.children), leaf_states[scan.leaves]))
        if every_node:
            total += _classify(params, h, scan.labels)
    if every_node:
        total += _classify(params, leaf_h[tables.leaves], tables.leaf_labels)
    else:
        total += _classify(params, jnp.concatenate([state[:, :hidden], leaf_h])[tables.roots], tables.root_labels)
    return total / len(tables.roots)


# --- Pairs of dependency trees


class PairScan(NamedTuple):
    """Some consecutive levels, the lowest first; a row of a level is a node.

    Attributes:
        tokens: int32 [levels, width], positions among the distinct words.
        parents: int32 [levels, width], for each row of the level below its parent's row; the width for padding.
        parent_tokens: int32 [levels, width], the parents' words.
    """

    tokens: np.ndarray
    parents: np.ndarray
    parent_tokens: np.ndarray


class PairTables(NamedTuple):
    """A minibatch, the lowest scan first. The roots of left and right sentences are the first rows of the top level."""

    tokens: np.ndarray
    scans: tuple[PairScan, ...]
    targets: np.ndarray


def _pair_levels(pairs: Sequence[Any]) -> list[list[tuple[Any, int]]]:
    """The nodes of a minibatch by depth, each with its parent's row."""
    levels = [[(root, 0) for root in (*(pair.left for pair in pairs), *(pair.right for pair in pairs))]]
    while below := [(child, row) for row, (node, _) in enumerate(levels[-1]) for child in node.children]:
        levels.append(below)
    return levels


def fit_pairs(batches: Sequence[Sequence[Any]], per_scan: int) -> Sizes:
    levels = [_pair_levels(batch) for batch in batches]
    distinct = [len({node.token for level in one for node, _ in level}) for one in levels]
    return Sizes(per_scan, _fit([list(map(len, one)) for one in levels], per_scan), (), max(map(round_up, distinct)))


def prepare_pairs(pairs: Sequence[Any], sizes: Sizes) -> PairTables:
    levels = _pair_levels(pairs)
    tokens, row_of = _distinct([node.token for level in levels for node, _ in level], sizes.tokens)
    scans = []
    for number, width in enumerate(sizes.widths):
        scan = PairScan(*np.zeros((3, sizes.per_scan, width), np.int32))
        scan.parents[:] = width
        for step in range(sizes.per_scan):
            depth = (number + 1) * sizes.per_scan - 1 - step
            here = levels[depth] if depth < len(levels) else []
            scan.tokens[step, : len(here)] = [row_of[node.token] for node, _ in here]
            if depth + 1 < len(levels):
                parents = [parent for _, parent in levels[depth + 1]]
                scan.parents[step, : len(parents)] = parents
                scan.parent_tokens[step, : len(parents)] = scan.tokens[step, parents]
        scans.append(scan)
    return PairTables(tokens, tuple(reversed(scans)), np.stack([pair.target for pair in pairs]))


def pair_loss(params: Params, tables: PairTables) -> jax.Array:
    """The mean loss of a minibatch."""
    hidden = params["b_f"].shape[0]
    projections = jnp.concatenate([params["w_iou"], params["w_f"]], axis=1)
    projected = params["embed"][tables.tokens] @ projections + jnp.concatenate([params["b_iou"], params["b_f"]])
    inputs, forgets = projected[:, : 3 * hidden], projected[:, 3 * hidden :]

    def level(below: tuple[jax.Array, jax.Array], step: tuple[jax.Array, ...]) -> tuple[Any, None]:
        x, parents, forget = step
        h, c = below
        kept = jax.nn.sigmoid(forget + h @ params["u_f"]) * c
        sums = jax.ops.segment_sum(jnp.concatenate([h, kept], axis=-1), parents, len(x), indices_are_sorted=True)
        iou = x + sums[:, :hidden] @ params["u_iou"]
        i, o, u = jnp.split(iou, 3, axis=-1)
        return _gates(i, o, u, sums[:, hidden:]), None

    h = c = jnp.zeros((0, hidden))
    for scan in tables.scans:
        width = scan.tokens.shape[1]
        steps = inputs[scan.tokens], jnp.asarray(scan.parents), forgets[scan.parent_tokens]
        (h, c), _ = jax.lax.scan(level, (_pad_rows(h, width), _pad_rows(c, width)), steps)

    number = len(tables.targets)
    left, right = h[:number], h[number : 2 * number]
    similar = jnp.concatenate([left * right, jnp.abs(left - right)], axis=-1)
    similar = similar @ jnp.concatenate([params["product"], params["distance"]]) + params["b_similarity"]
    predicted = jax.nn.log_softmax(jax.nn.sigmoid(similar) @ params["out"] + params["b_out"])
    targets = jnp.asarray(tables.targets)
    return (jax.scipy.special.xlogy(targets, targets) - targets * predicted).sum(axis=-1).mean()
