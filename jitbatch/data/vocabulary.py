"""Words and their numbers, and vectors of words from a file."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jitbatch.data.files import fields, located, numbered_lines


class Vocabulary:
    """Numbers words in the order of their first occurrence. Number 0 is the unknown word.

    It grows with every new word that is looked up until it is frozen; then new words are unknown. So the training
    sentences are read first, and those for development and test after `freeze()`.

    Args:
        words: the first words.

    >>> words = Vocabulary()
    >>> [words[word] for word in "to be or not to be".split()]
    [1, 2, 3, 4, 1, 2]
    >>> words.freeze()
    >>> words["perhaps"], words.word(4), len(words)
    (0, 'not', 5)
    """

    UNKNOWN = "<unknown>"

    def __init__(self, words: Iterable[str] = ()):
        self._numbers = {self.UNKNOWN: 0}
        self._words = [self.UNKNOWN]
        self._frozen = False
        for word in words:
            self[word]

    def __getitem__(self, word: str) -> int:
        """The number of a word."""
        word_id = self._numbers.get(word)
        if word_id is None:
            if self._frozen:
                return 0
            word_id = self._numbers[word] = len(self._words)
            self._words.append(word)
        return word_id

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} words{', frozen' if self._frozen else ''})"

    def word(self, number: int) -> str:
        """The word that has a number."""
        return self._words[number]

    def freeze(self) -> None:
        """From now on, words that are not known are the unknown word."""
        self._frozen = True


class Vectors(NamedTuple):
    """Word vectors.

    Attributes:
        table: float32 [words, dimensions]; a row for each word of the vocabulary.
        found: the number of these words in the file. The other rows are random.
    """

    table: np.ndarray
    found: int


def read_vectors(file: str | Path, vocabulary: Vocabulary, seed: int = 0) -> Vectors:
    """Read the vectors of a vocabulary from a text file in GloVe's format: a word and its numbers in each line.

    A word that is not in the file gets the vector of its lower-case form, or else a random one. Random vectors are
    normally distributed, with the mean and standard deviation of the vectors in the file.

    Raises:
        DataError: a line is not UTF-8 text; or, among the words of the vocabulary, lines differ in the number of
            numbers, or a number is not finite.
        ValueError: the file has none of the words.
    """
    wanted = {form for word in vocabulary for form in (word, word.lower())}
    known: dict[str, np.ndarray] = {}
    size = None
    for line_number, line in numbered_lines(file):
        with located(file, line_number):
            if size is None:
                size = len(fields(line)) - 1
                if size < 2:
                    raise ValueError("a word and the numbers of its vector were expected, not a header or nothing")
            word, *numbers = line.rstrip().rsplit(" ", size)  # a word may have spaces in it
            if word in wanted and word not in known:
                known[word] = _vector(numbers, size)
    if not known:
        raise ValueError(f"{file} has a vector for none of the {len(vocabulary):,} words")
    found = np.array(list(known.values()))
    normal = np.random.default_rng(seed).normal(found.mean(), found.std(), (len(vocabulary), found.shape[1]))
    table = normal.astype(np.float32)
    hits = 0
    for row, word in enumerate(vocabulary):
        vector = known.get(word, known.get(word.lower()))
        if vector is not None:
            table[row] = vector
            hits += 1
    return Vectors(table, hits)


def _vector(numbers: list[str], size: int) -> np.ndarray:
    if len(numbers) != size:
        raise ValueError(f"the first line has {size} numbers, this one {len(numbers)}")
    try:
        with np.errstate(over="ignore"):
            vector = np.array(numbers, np.float32)
    except ValueError:
        wrong = next(text for text in numbers if not _is_number(text))
        raise ValueError(f"{wrong!r} is not a number") from None
    if not np.isfinite(vector).all():
        wrong = numbers[int(np.argmin(np.isfinite(vector)))]
        raise ValueError(f"{wrong!r} is not a finite number of type float32")
    return vector


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
