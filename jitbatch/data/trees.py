"""Trees as samples: binary trees over words, trees of words and their dependents."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Tree: TypeAlias = Any  # int | tuple[Tree, Tree]
"""A binary tree: a word's number, or two trees."""

TypedTree: TypeAlias = Any  # int | tuple[Static[int], TypedTree, TypedTree]
"""A binary tree whose inner nodes have a kind: a word's number, or a kind and two trees."""


class Sentence(NamedTuple):
    """A sentence as a binary tree, with a class for each node.

    Attributes:
        tree: the tree.
        labels: the classes of the nodes in post-order. The last one is the class of the root.
    """

    tree: Tree
    labels: np.ndarray


class Dependency(NamedTuple):
    """A word and its dependents.

    Attributes:
        token: the number of the word.
        children: the dependents.
    """

    token: int
    children: tuple["Dependency", ...]


class Pair(NamedTuple):
    """Two sentences, and how related they are.

    Attributes:
        left, right: the sentences.
        target: a distribution over the scores 1 to 5.
    """

    left: Dependency
    right: Dependency
    target: np.ndarray

    @property
    def score(self) -> float:
        """The mean of the distribution."""
        return float(self.target @ np.arange(1, len(self.target) + 1))


def score_distribution(score: float) -> np.ndarray:
    """The distribution over at most two neighbouring scores from 1 to 5 that has this mean (Tai et al., 2015).

    >>> score_distribution(3.25).tolist()
    [0.0, 0.0, 0.75, 0.25, 0.0]
    """
    return np.maximum(0, 1 - np.abs(np.arange(1, 6) - score)).astype(np.float32)


def dependency_tree(tokens: Sequence[int], heads: Sequence[int]) -> Dependency:
    """The tree of words from the head of each word.

    Args:
        tokens: a number for each word.
        heads: for each word the position of its head, from 1, or 0 for the root.

    Raises:
        ValueError: these are not the heads of a tree.

    >>> dependency_tree([7, 8, 9], [2, 0, 2])
    Dependency(token=8, children=(Dependency(token=7, children=()), Dependency(token=9, children=())))
    """
    check_heads(heads, len(tokens))
    children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]  # of the root's place, 0, and of each word
    for position, head in enumerate(heads, 1):
        children[head].append(position)
    order = [0]
    for position in order:
        order += children[position]
    built: dict[int, Dependency] = {}
    for position in reversed(order[1:]):
        built[position] = Dependency(tokens[position - 1], tuple(built[child] for child in children[position]))
    return built[order[1]]


def check_heads(heads: Sequence[int], words: int) -> None:
    """Raise a ValueError unless these are the heads of a tree with this number of words."""
    if len(heads) != words:
        raise ValueError(f"there are {words} words, but {len(heads)} heads")
    for position, head in enumerate(heads, 1):
        if not 0 <= head <= words:
            raise ValueError(f"word {position} has head {head}, but there are words 1 to {words}")
    roots = [position for position, head in enumerate(heads, 1) if head == 0]
    if len(roots) != 1:
        raise ValueError(
            f"exactly one word must have head 0, the root; {'words ' if roots else ''}{_listed(roots)} have"
        )
    reaches_root = {0}
    for position in range(1, words + 1):
        path: list[int] = []
        while position not in reaches_root:
            if position in path:
                raise ValueError(f"the heads of words {_listed(sorted(path[path.index(position) :]))} form a circle")
            path.append(position)
            position = heads[position - 1]
        reaches_root.update(path)


def _listed(positions: Sequence[int]) -> str:
    return ", ".join(map(str, positions)) or "none"
