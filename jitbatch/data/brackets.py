"""Trees in brackets: the Penn Treebank's, and the Stanford Sentiment Treebank's with a class as each node's label."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from jitbatch.data.files import lines_of, located, whole_number
from jitbatch.data.trees import Sentence, Tree
from jitbatch.data.vocabulary import Vocabulary


class Constituent(NamedTuple):
    """A labelled part of a sentence.

    Attributes:
        label: its label.
        children: other constituents, or one word.
    """

    label: str
    children: tuple[Union["Constituent", str], ...]


def read_ptb(file: str | Path) -> list[Constituent]:
    """Trees such as `(S (NP (PRP It)) (VP (VBZ works)))`, each in any number of lines.

    Brackets without a label, which the Penn Treebank has around each sentence, have the label `""`.

    Raises:
        DataError: brackets do not match, or something is not in brackets, empty, or neither a constituent nor a word.
    """
    return [tree for _, tree in _numbered_trees(file)]


def read_sst(file: str | Path, vocabulary: Vocabulary) -> list[Sentence]:
    """Binary trees with a class from 0 to 4 at each node: `(3 (2 It) (4 works))`.

    Raises:
        DataError: as for `read_ptb`; a label is not a class, or a node has neither one word nor two children.
    """
    sentences = []
    for line, tree in _numbered_trees(file):
        with located(file, line):
            labels: list[int] = []
            sentences.append(Sentence(_binary(tree, vocabulary, labels), np.array(labels, np.int32)))
    return sentences


def _binary(root: Constituent, vocabulary: Vocabulary, labels: list[int]) -> Tree:
    """The tree below a node; the classes of its nodes are appended in post-order. It may be of any depth."""
    trees: list[Tree] = []
    todo = [(root, False)]  # nodes, and whether the trees of their children are made
    while todo:
        node, has_children = todo.pop()
        match node.children:
            case (str(word),):
                trees.append(vocabulary[word])
            case (Constituent(), Constituent()) if has_children:
                trees[-2:] = [(trees[-2], trees[-1])]
            case (Constituent() as left, Constituent() as right):
                todo += [(node, True), (right, False), (left, False)]
                continue
            case children:
                raise ValueError(f"a node must have one word or two children, not {len(children)} children")
        labels.append(_class(node.label))
    return trees.pop()


def _class(label: str) -> int:
    class_id = whole_number(label, "a class")
    if class_id > 4:
        raise ValueError(f"a class must be from 0 to 4, not {class_id}")
    return class_id


def _numbered_trees(file: str | Path) -> Iterator[tuple[int, Constituent]]:
    """Each tree with the number of the line in which it begins."""
    open_at: list[int] = []  # lines of the brackets that are open
    parts: list[list[Constituent | str]] = []  # both contain strings: labels and words
    begin = 0
    for line_number, line in enumerate(lines_of(file), 1):
        with located(file, line_number):
            # The text right after an opening bracket is its label. SST has words with no-break spaces, so only ASCII
            # spaces separate.
            for opening, label, closing, word in re.findall(r"(\()\s*([^\s()]*)|(\))|([^\s()]+)", line, re.ASCII):
                if opening:
                    begin = begin if open_at else line_number
                    open_at.append(line_number)
                    parts.append([label])
                elif not open_at:
                    raise ValueError(
                        "a bracket is closed that was not opened" if closing else f"{word!r} is not in brackets"
                    )
                elif word:
                    parts[-1].append(word)
                else:
                    open_at.pop()
                    node = _constituent(parts.pop())
                    if parts:
                        parts[-1].append(node)
                    else:
                        yield begin, node
    if open_at:
        with located(file, open_at[-1]):
            raise ValueError("a bracket is opened that is not closed")


def _constituent(parts: list[Constituent | str]) -> Constituent:
    label, *children = parts
    assert isinstance(label, str)
    if not children:
        raise ValueError(f"the brackets of {label!r} have nothing in them")
    if len(children) > 1 and any(isinstance(child, str) for child in children):
        raise ValueError(f"the brackets of {label!r} must have either one word or constituents in them")
    return Constituent(label, tuple(children))
