"""Samples for taggers: sentences as numbers."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jitbatch.data.conllu import Parsed
from jitbatch.data.vocabulary import Vocabulary


class Spelled(NamedTuple):
    """A word and its characters.

    Attributes:
        word: the number of the word.
        characters: the numbers of its characters.
    """

    word: int
    characters: np.ndarray


Words: TypeAlias = Any  # np.ndarray | list[Spelled]
"""The words of a sentence: an array of their numbers, or a list with the characters of each."""


class Tagged(NamedTuple):
    """A sentence with a tag for each word.

    Attributes:
        words: an array of the numbers of the words, or a list of `Spelled` words.
        tags: the number of the tag of each word.
    """

    words: Words
    tags: np.ndarray


def tagged(
    sentences: Iterable[Parsed], words: Vocabulary, tags: Vocabulary, characters: Vocabulary | None = None
) -> list[Tagged]:
    """Sentences as numbers; with a vocabulary of characters, words are `Spelled`.

    >>> from jitbatch.data import Parsed, Vocabulary
    >>> sentence = Parsed(["It", "works"], ["PRON", "VERB"], [2, 0], ["nsubj", "root"])
    >>> tagged([sentence], Vocabulary(), Vocabulary())
    [Tagged(words=array([1, 2], dtype=int32), tags=array([1, 2], dtype=int32))]
    """

    def numbers(names: Iterable[str], vocabulary: Vocabulary) -> np.ndarray:
        return np.array([vocabulary[name] for name in names], np.int32)

    return [
        Tagged(
            numbers(sentence.words, words)
            if characters is None
            else [Spelled(words[word], numbers(word, characters)) for word in sentence.words],
            numbers(sentence.tags, tags),
        )
        for sentence in sentences
    ]
