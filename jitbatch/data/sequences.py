"""Samples of one sequence made from another, of sequences of sequences, and artificial ones of both."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

END = 0
"""The number of the end of a sequence. It also precedes the first word."""


class Translation(NamedTuple):
    """A sequence to read, and a sequence to write.

    Attributes:
        source: the numbers of the words to read.
        target: the numbers of the words to write; the last one is the end.
    """

    source: np.ndarray
    target: np.ndarray


class Document(NamedTuple):
    """A document and its class.

    Attributes:
        sentences: for each sentence the numbers of its words.
        label: the class.
    """

    sentences: tuple[np.ndarray, ...]
    label: int


def make_reversals(
    seed: int, sizes: Sequence[int], words: int = 20, lengths: tuple[int, int] = (2, 10)
) -> list[list[Translation]]:
    """Random sequences, to be written backwards.

    Args:
        seed: equal seeds make equal sets.
        sizes: how many samples each set has.
        words: how many different words there are, the end among them.
        lengths: of the shortest and the longest sequence.

    >>> ((one,),) = make_reversals(0, [1], words=9, lengths=(3, 3))
    >>> one.source.tolist(), one.target.tolist()
    ([7, 6, 5], [5, 6, 7, 0])
    """
    rng = np.random.default_rng(seed)

    def sample() -> Translation:
        source = _words(rng, words, lengths)
        return Translation(source, np.append(source[::-1], np.int32(END)))

    return [[sample() for _ in range(size)] for size in sizes]


def make_documents(
    seed: int,
    sizes: Sequence[int],
    words: int = 20,
    lengths: tuple[int, int] = (2, 8),
    sentences: tuple[int, int] = (1, 6),
    classes: int = 4,
) -> list[list[Document]]:
    """Random documents. Their class is how many of their sentences have a word twice, up to the largest class.

    Args:
        seed: equal seeds make equal sets.
        sizes: how many samples each set has.
        words: how many different words there are.
        lengths: of the shortest and the longest sentence.
        sentences: the least and the largest number of sentences.
        classes: how many classes there are.

    >>> ((one,),) = make_documents(2, [1], words=4, lengths=(1, 4), sentences=(3, 3))
    >>> [sentence.tolist() for sentence in one.sentences], one.label
    ([[1, 1, 1, 2], [2, 1, 2, 2], [3, 3, 1, 3]], 3)
    """
    rng = np.random.default_rng(seed)

    def sample() -> Document:
        texts = tuple(_words(rng, words, lengths) for _ in range(rng.integers(sentences[0], sentences[1] + 1)))
        repeating = sum(len(set(sentence.tolist())) < len(sentence) for sentence in texts)
        return Document(texts, min(repeating, classes - 1))

    return [[sample() for _ in range(size)] for size in sizes]


def _words(rng: np.random.Generator, words: int, lengths: tuple[int, int]) -> np.ndarray:
    """Random words, without the end."""
    return rng.integers(1, words, size=rng.integers(lengths[0], lengths[1] + 1)).astype(np.int32)
