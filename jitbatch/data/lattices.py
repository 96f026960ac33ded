"""Lattices: sequences of characters and the words of a lexicon over them, as in Chinese, which has no spaces."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jitbatch import Static

OUTSIDE, BEGIN, INSIDE = range(3)
"""Tags of characters: not in a name, the first of a name, a later one of a name."""


class Lattice(NamedTuple):
    """Characters, the words over them, and a tag for each character.

    Attributes:
        characters: the numbers of the characters.
        spans: for each word the positions of its first and last character. They determine the computation, so they are
            static.
        words: the numbers of the words.
        tags: the tags of the characters.
    """

    characters: np.ndarray
    spans: Static[tuple[tuple[int, int], ...]]
    words: np.ndarray
    tags: np.ndarray


def match(characters: Sequence[int], lexicon: dict[tuple[int, ...], int]) -> list[tuple[int, int, int]]:
    """All words of a lexicon that occur in some characters: first and last position, and the word's number.

    >>> match([5, 6, 7], {(5, 6): 0, (6, 7): 1, (5, 6, 7): 2, (7, 7): 3, (7,): 4})
    [(0, 1, 0), (0, 2, 2), (1, 2, 1), (2, 2, 4)]
    """
    lengths = sorted({len(word) for word in lexicon})
    found = []
    for first in range(len(characters)):
        for length in lengths:
            last = first + length - 1
            word = tuple(characters[first : last + 1])
            if last < len(characters) and word in lexicon:
                found.append((first, last, lexicon[word]))
    return found


def make_lattices(
    seed: int, sizes: Sequence[int], characters: int = 30, words: int = 40, lengths: tuple[int, int] = (3, 10)
) -> list[list[Lattice]]:
    """Sentences of an artificial language without spaces; half of its words are names, whose characters are tagged.

    Words overlap by chance, so that a character alone does not tell what it belongs to.

    Args:
        seed: equal seeds make equal sets.
        sizes: how many sentences each set has.
        characters: how many different characters there are.
        words: how many different words there are, each of two to four characters.
        lengths: the least and the largest number of words of a sentence.

    >>> ((one,),) = make_lattices(0, [1], characters=6, words=8, lengths=(2, 2))
    >>> one.characters.tolist(), one.spans.value, one.words.tolist(), one.tags.tolist()
    ([2, 5, 0, 0], ((0, 1), (2, 3)), [6, 1], [0, 0, 1, 2])
    """
    rng = np.random.default_rng(seed)
    lexicon: dict[tuple[int, ...], int] = {}
    while len(lexicon) < words:
        word = rng.integers(characters, size=rng.integers(2, 5)).tolist()
        lexicon.setdefault(tuple(word), len(lexicon))
    spelled = list(lexicon)

    def sample() -> Lattice:
        chosen = rng.integers(words, size=rng.integers(lengths[0], lengths[1] + 1)).tolist()
        text = [character for word in chosen for character in spelled[word]]
        found = match(text, lexicon)
        spans = Static(tuple((first, last) for first, last, _ in found))
        tags = [tag for word in chosen for tag in _tags(len(spelled[word]), is_name=word % 2 == 1)]
        return Lattice(_numbers(text), spans, _numbers(word for _, _, word in found), _numbers(tags))

    return [[sample() for _ in range(size)] for size in sizes]


def _tags(length: int, is_name: bool) -> list[int]:
    return [BEGIN] + [INSIDE] * (length - 1) if is_name else [OUTSIDE] * length


def _numbers(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int32)
