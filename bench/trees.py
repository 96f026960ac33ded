"""Random trees for the benchmarks, counting the nodes of trees, and minibatches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jitbatch.data import Dependency, Pair, Sentence, Tree
from jitbatch.data.trees import dependency_tree, score_distribution


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
        tokens = [int(rng.integers(words)) for _ in range(rng.integers(3, 20))]
        return dependency_tree(tokens, [0, *(1 + int(rng.integers(position)) for position in range(1, len(tokens)))])

    return [Pair(sentence(), sentence(), score_distribution(float(rng.uniform(1, 5)))) for _ in range(number)]


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


def levels_of(samples: Iterable[Sentence | Pair]) -> tuple[int, int]:
    """How many different heights nodes have, and how many different heights and numbers of children."""
    kinds: set[tuple[int, int]] = set()

    def height(node: Any) -> int:
        children = children_of(node)
        here = 1 + max(map(height, children), default=-1)
        kinds.add((here, len(children)))
        return here

    for sample in samples:
        for root in roots_of(sample):
            height(root)
    return len({one for one, _ in kinds}), len(kinds)


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
