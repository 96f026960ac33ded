"""Samples for the benchmarks: sentiment trees (SST), pairs of dependency trees (SICK), and random trees.

Words become numbers by the order of their first occurrence in a vocabulary that the readers extend.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Tree: TypeAlias = Any  # int | tuple[Tree, Tree]
Vocabulary: TypeAlias = dict[str, int]


class Sentence(NamedTuple):
    """A binary tree over words and a class for each of its nodes, in post-order: the root's is the last."""

    tree: Tree
    labels: np.ndarray


class Dependency(NamedTuple):
    """A word and what depends on it."""

    token: int
    children: list["Dependency"]


class Pair(NamedTuple):
    """Two sentences and how related they are, as a distribution over the scores 1 to 5."""

    left: Dependency
    right: Dependency
    target: np.ndarray


def read_sst(file: Path, vocabulary: Vocabulary) -> list[Sentence]:
    """Lines such as `(3 (2 It) (4 works))`."""
    with file.open(encoding="utf-8") as lines:
        return [_read_brackets(line, vocabulary) for line in lines]


def _read_brackets(line: str, vocabulary: Vocabulary) -> Sentence:
    labels: list[int] = []
    stack: list[list[Any]] = [[]]
    for symbol in line.replace("(", " ( ").replace(")", " ) ").split():
        if symbol == "(":
            stack.append([])
        elif symbol == ")":
            label, *children = stack.pop()
            labels.append(int(label))
            stack[-1].append(children[0] if len(children) == 1 else tuple(children))
        else:
            stack[-1].append(symbol if not stack[-1] else vocabulary.setdefault(symbol, len(vocabulary)))
    return Sentence(stack[0][0], np.array(labels, np.int32))


def read_sick(folder: Path, vocabulary: Vocabulary) -> list[Pair]:
    """Files of one line a sentence: words, and for each word the position of its head, from 1, or 0 for the root."""
    names = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt")
    columns = [(folder / name).read_text(encoding="utf-8").splitlines() for name in names]
    return [
        Pair(_read_parents(a, a_heads, vocabulary), _read_parents(b, b_heads, vocabulary), _distribution(float(score)))
        for a, a_heads, b, b_heads, score in zip(*columns, strict=True)
    ]


def _read_parents(words: str, heads: str, vocabulary: Vocabulary) -> Dependency:
    nodes = [Dependency(vocabulary.setdefault(word, len(vocabulary)), []) for word in words.split()]
    parents = [int(head) for head in heads.split()]
    for node, parent in zip(nodes, parents, strict=True):
        if parent:
            nodes[parent - 1].children.append(node)
    return nodes[parents.index(0)]


def _distribution(score: float) -> np.ndarray:
    """The distribution over at most two neighbouring scores that has this mean (Tai et al., 2015)."""
    return np.maximum(0, 1 - np.abs(np.arange(1, 6) - score)).astype(np.float32)


def random_tree(rng: np.random.Generator, leaves: int, words: int = 1000) -> Tree:
    if leaves == 1:
        return int(rng.integers(words))
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left, words), random_tree(rng, leaves - left, words)


def random_sentences(rng: np.random.Generator, number: int, words: int = 1000) -> list[Sentence]:
    trees = [random_tree(rng, int(rng.integers(2, 31)), words) for _ in range(number)]
    return [Sentence(tree, rng.integers(5, size=nodes_of(tree)).astype(np.int32)) for tree in trees]


def random_pairs(rng: np.random.Generator, number: int, words: int = 1000) -> list[Pair]:
    def sentence() -> Dependency:
        nodes = [Dependency(int(rng.integers(words)), []) for _ in range(rng.integers(3, 20))]
        for position, node in enumerate(nodes[1:]):
            nodes[rng.integers(position + 1)].children.append(node)
        return nodes[0]

    return [Pair(sentence(), sentence(), _distribution(float(rng.uniform(1, 5)))) for _ in range(number)]


# --- Counting


def children_of(node: Tree | Dependency) -> Sequence[Any]:
    if isinstance(node, Dependency):
        return node.children
    return node if isinstance(node, tuple) else ()


def roots_of(sample: Sentence | Pair) -> tuple[Any, ...]:
    return (sample.left, sample.right) if isinstance(sample, Pair) else (sample.tree,)


def nodes_of(node: Tree | Dependency) -> int:
    return 1 + sum(map(nodes_of, children_of(node)))


def total_nodes(samples: Iterable[Sentence | Pair]) -> int:
    return sum(nodes_of(root) for sample in samples for root in roots_of(sample))


def distinct_subtrees(samples: Iterable[Sentence | Pair]) -> list[tuple[int, ...]]:
    """Each different subtree once: its word, or -1, and the positions of its children in this list."""
    numbers: dict[tuple[int, ...], int] = {}

    def number(node: Any) -> int:
        below = map(number, children_of(node))
        token = node.token if isinstance(node, Dependency) else -1 if isinstance(node, tuple) else node
        return numbers.setdefault((token, *below), len(numbers))

    for sample in samples:
        for root in roots_of(sample):
            number(root)
    return list(numbers)


def minibatches(samples: Sequence[Any], size: int, order: np.ndarray | None = None) -> Iterator[list[Any]]:
    """Full minibatches in the given order; what does not fill one is left out."""
    positions = np.arange(len(samples)) if order is None else order
    for first in range(0, len(samples) - size + 1, size):
        yield [samples[i] for i in positions[first : first + size]]
