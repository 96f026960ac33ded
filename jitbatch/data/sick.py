"""SICK: pairs of sentences with dependency trees and a score from 1 to 5 of how related they are."""

from pathlib import Path

from jitbatch.data.files import fields, lines_of, located, whole_number
from jitbatch.data.trees import Dependency, Pair, dependency_tree, score_distribution
from jitbatch.data.vocabulary import Vocabulary
from jitbatch.util.errors import DataError

FILES = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt")


def read_sick(folder: str | Path, vocabulary: Vocabulary) -> list[Pair]:
    """Read a folder in the layout of the Tree-LSTM code of Tai et al. (2015).

    Line i of `a.toks` and `b.toks` is a sentence, of `a.parents` and `b.parents` the position of each word's head, from
    1, or 0 for the root, and of `sim.txt` the score.

    Raises:
        DataError: a line is malformed, or the files have different numbers of lines.
    """
    files = [Path(folder) / name for name in FILES]
    columns = [lines_of(file) for file in files]
    for file, column in zip(files, columns, strict=True):
        if len(column) != len(columns[0]):
            raise DataError(
                f"{file}:{min(len(column), len(columns[0])) + 1}: the file has {len(column)} lines, but "
                f"{files[0]} has {len(columns[0])}"
            )
    pairs = []
    for line_number, (a, a_heads, b, b_heads, score) in enumerate(zip(*columns, strict=True), 1):
        with located(files[1], line_number):
            left = _tree(a, a_heads, vocabulary)
        with located(files[3], line_number):
            right = _tree(b, b_heads, vocabulary)
        with located(files[4], line_number):
            pairs.append(Pair(left, right, score_distribution(_score(score))))
    return pairs


def _tree(words: str, heads: str, vocabulary: Vocabulary) -> Dependency:
    positions = [whole_number(head, "a head") for head in fields(heads)]
    return dependency_tree([vocabulary[word] for word in fields(words)], positions)


def _score(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = 0.0
    if not 1 <= score <= 5:
        raise ValueError(f"the score must be a number from 1 to 5, not {text!r}")
    return score
