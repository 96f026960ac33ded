"""CoNLL-U: sentences with a tag, a head and a relation for each word (https://universaldependencies.org/format.html)."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jitbatch.data.files import lines_of, located, whole_number
from jitbatch.data.trees import Dependency, check_heads, dependency_tree
from jitbatch.data.vocabulary import Vocabulary

COLUMNS = 10


class Parsed(NamedTuple):
    """A sentence with its dependency tree.

    Attributes:
        words: the words.
        tags: the tag (UPOS) of each word.
        heads: the position of the head of each word, from 1; 0 for the root.
        relations: the relation of each word to its head.
    """

    words: list[str]
    tags: list[str]
    heads: list[int]
    relations: list[str]

    def tree(self, vocabulary: Vocabulary) -> Dependency:
        """The words as a tree of heads and dependents."""
        return dependency_tree([vocabulary[word] for word in self.words], self.heads)


def read_conllu(file: str | Path) -> list[Parsed]:
    """The sentences of a file. Comments, ranges of words (`1-2`) and empty nodes (`1.1`) are left out.

    Raises:
        DataError: a line has not ten columns, a word has a wrong number or head, or a sentence's heads are no tree.
    """
    sentences = []
    rows: list[list[str]] = []
    begin = 0
    for line_number, line in enumerate([*lines_of(file), ""], 1):
        if not line.strip():
            if rows:
                with located(file, begin):
                    sentences.append(_sentence(rows))
            rows = []
        elif not line.startswith("#"):
            with located(file, line_number):
                columns = line.split("\t")
                if len(columns) != COLUMNS:
                    raise ValueError(f"a word has {COLUMNS} columns with tabs between them, not {len(columns)}")
                if re.fullmatch(r"\d+[-.]\d+", columns[0]):
                    continue
                begin = begin if rows else line_number
                _check_word(columns, len(rows) + 1)
                rows.append(columns)
    return sentences


def _check_word(columns: Sequence[str], expected: int) -> None:
    if whole_number(columns[0], "the number of a word") != expected:
        raise ValueError(f"word {expected} was expected, not {columns[0]}")
    whole_number(columns[6], "a head")


def _sentence(rows: list[list[str]]) -> Parsed:
    _, words, _, tags, _, _, heads, relations, _, _ = map(list, zip(*rows, strict=True))
    positions = [int(head) for head in heads]
    check_heads(positions, len(words))
    return Parsed(words, tags, positions, relations)
