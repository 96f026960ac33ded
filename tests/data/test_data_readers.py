"""Readers of data files: what they read, and what they say about malformed lines."""

import re
import sys

import numpy as np
import pytest

from jitbatch import JitbatchError
from jitbatch.data import (
    Constituent,
    DataError,
    Dependency,
    Parsed,
    Vocabulary,
    read_conllu,
    read_ptb,
    read_sick,
    read_sst,
    read_vectors,
)
from jitbatch.data.trees import dependency_tree


@pytest.fixture
def write(tmp_path):
    def write(text, name="file"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refuses(read, file, line, message):
    with pytest.raises(DataError, match=re.escape(f"{file}:{line}: {message}")) as caught:
        read(file)
    assert isinstance(caught.value, JitbatchError)
    assert isinstance(caught.value, ValueError)


# --- Trees of heads


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([0, 1], "there are 3 words, but 2 heads"),
        ([0, 1, 4], "word 3 has head 4, but there are words 1 to 3"),
        ([2, 1, 1], "exactly one word must have head 0, the root; none have"),
        ([0, 0, 1], "exactly one word must have head 0, the root; words 1, 2 have"),
        ([0, 3, 2], "the heads of words 2, 3 form a circle"),
    ],
)
def test_heads_that_are_no_tree(heads, message):
    with pytest.raises(ValueError, match=message):
        dependency_tree([7, 8, 9], heads)


# --- SST and the Penn Treebank


def test_sst(write):
    words = Vocabulary()
    file = write("(3 (2 It) (4 (2 really) (3 works)))\n\n(1 no\N{NO-BREAK SPACE}end)\n")
    first, second = read_sst(file, words)
    assert first.tree == (1, (2, 3))
    assert first.labels.tolist() == [2, 2, 3, 4, 3]
    assert second.tree == 4
    assert list(words) == ["<unknown>", "It", "really", "works", "no\N{NO-BREAK SPACE}end"]
    words.freeze()
    assert read_sst(write("(3 (2 It) (2 broke))"), words)[0].tree == (1, 0)


def test_sst_of_any_depth(write):
    depth = 10 * sys.getrecursionlimit()
    (sentence,) = read_sst(write("(2 " * depth + "(1 a)" + " (3 b))" * depth), Vocabulary())
    assert sentence.labels.tolist() == [1, *[3, 2] * depth]
    tree = sentence.tree
    for _ in range(depth):
        tree, right = tree
        assert right == 2
    assert tree == 1


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("(2 a)\n(3 (2 It) (4 works)\n", 2, "a bracket is opened that is not closed"),
        ("(3 (2 It) (4 works)))", 1, "a bracket is closed that was not opened"),
        ("(2 a)\nloose (2 b)", 2, "'loose' is not in brackets"),
        ("(2 a)\n(2 (3) (2 b))", 2, "the brackets of '3' have nothing in them"),
        ("(2 a b)", 1, "the brackets of '2' must have either one word or constituents in them"),
        ("(2 (2 a) b)", 1, "the brackets of '2' must have either one word or constituents in them"),
        ("(2 (2 a) (2 b) (2 c))", 1, "a node must have one word or two children, not 3 children"),
        ("(2 (2 a))", 1, "a node must have one word or two children, not 1 children"),
        ("(2 a)\n(good (2 a) (2 b))", 2, "a class must be a whole number, not 'good'"),
        ("(7 a)", 1, "a class must be from 0 to 4, not 7"),
        (b"(2 a)\n(2 \xff)", 2, "this is not UTF-8 text"),
    ],
)
def test_malformed_sst(write, text, line, message):
    refuses(lambda file: read_sst(file, Vocabulary()), write(text), line, message)


def test_ptb(write):
    file = write("( (S (NP (PRP It))\n   (VP (VBZ works))))\n(FRAG (UH yes))")
    sentence, fragment = read_ptb(file)
    works = Constituent("VP", (Constituent("VBZ", ("works",)),))
    assert sentence == Constituent("", (Constituent("S", (Constituent("NP", (Constituent("PRP", ("It",)),)), works)),))
    assert fragment == Constituent("FRAG", (Constituent("UH", ("yes",)),))


def test_malformed_ptb_names_the_line_in_a_tree(write):
    refuses(read_ptb, write("(S (NP (PRP It))\n   (VP ()))\n"), 2, "the brackets of '' have nothing in them")
    refuses(read_ptb, write("(S\n (NP (PRP It)\n"), 2, "a bracket is opened that is not closed")


# --- SICK

SICK = {
    "a.toks": "A dog runs\nNo dog",
    "a.parents": "2 3 0\n2 0",
    "b.toks": "It\nA dog runs",
    "b.parents": "0\n2 3 0",
    "sim.txt": "4.5\n1",
}


def sick_folder(write, **changes):
    for name, text in SICK.items():
        file = write(changes.get(name.replace(".", "_"), text), name)
    return file.parent


def test_sick(write):
    words = Vocabulary()
    first, second = read_sick(sick_folder(write), words)
    assert first.left == Dependency(3, (Dependency(2, (Dependency(1, ()),)),))
    assert first.right == Dependency(words["It"], ())
    assert second.right == first.left
    assert first.target.tolist() == [0, 0, 0, 0.5, 0.5]
    assert [first.score, second.score] == [4.5, 1.0]


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("a.parents", "2 3 0\n2 x", 2, "a head must be a whole number, not 'x'"),
        ("a.parents", "2 3 0\n2 0 1", 2, "there are 2 words, but 3 heads"),
        ("b.parents", "0\n2 1 0", 2, "the heads of words 1, 2 form a circle"),
        ("b.parents", "-1\n2 3 0", 1, "a head must be a whole number, not '-1'"),
        ("sim.txt", "4.5\nhigh", 2, "the score must be a number from 1 to 5, not 'high'"),
        ("sim.txt", "0.5\n1", 1, "the score must be a number from 1 to 5, not '0.5'"),
        ("b.toks", "It", 2, "the file has 1 lines, but "),
    ],
)
def test_malformed_sick(write, name, text, line, message):
    folder = sick_folder(write, **{name.replace(".", "_"): text})
    refuses(lambda file: read_sick(file.parent, Vocabulary()), folder / name, line, message)


# --- CoNLL-U


def row(number, word, tag="_", head="_", relation="_"):
    return "\t".join([str(number), word, "_", tag, "_", "_", str(head), relation, "_", "_"])


DONT = [
    "# text = Don't.",
    row("1-2", "Don't"),
    row(1, "Do", "AUX", 0, "root"),
    row(2, "n't", "PART", 1, "advmod"),
    row("2.1", "go"),
    row(3, ".", "PUNCT", 1, "punct"),
]


def test_conllu(write):
    yes = [row(1, "Yes", "INTJ", 0, "root")]
    first, second = read_conllu(write("\n".join(["", *DONT, "", "", *yes])))
    assert first == Parsed(["Do", "n't", "."], ["AUX", "PART", "PUNCT"], [0, 1, 1], ["root", "advmod", "punct"])
    assert second.words == ["Yes"]
    assert first.tree(Vocabulary()) == Dependency(1, (Dependency(2, ()), Dependency(3, ())))


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ([*DONT, "4\tgo"], 7, "a word has 10 columns with tabs between them, not 2"),
        ([*DONT, row(5, "go", "VERB", 1)], 7, "word 4 was expected, not 5"),
        ([*DONT, row("x", "go", "VERB", 1)], 7, "the number of a word must be a whole number, not 'x'"),
        ([*DONT, row(4, "go", "VERB", "_")], 7, "a head must be a whole number, not '_'"),
        ([*DONT, row(4, "go", "VERB", 9)], 3, "word 4 has head 9, but there are words 1 to 4"),
        ([*DONT, row(4, "go", "VERB", 0)], 3, "exactly one word must have head 0, the root; words 1, 4 have"),
    ],
)
def test_malformed_conllu(write, lines, line, message):
    refuses(read_conllu, write("\n".join(lines)), line, message)


# --- Vectors


def test_vectors(write):
    words = Vocabulary(["The", "cat", "sat", ". ."])
    file = write("the 1 2 3\nthe 9 9 9\nsat 4 5 6\nother x y z\n. . 7 8 9\n")
    table, found = read_vectors(file, words)
    assert (table.shape, table.dtype, found) == ((5, 3), np.float32, 3)
    assert table[words["The"]].tolist() == [1, 2, 3]
    assert table[words[". ."]].tolist() == [7, 8, 9]
    assert np.array_equal(read_vectors(file, words).table, table)
    assert not np.array_equal(read_vectors(file, words, seed=1).table[words["cat"]], table[words["cat"]])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("400000 300\nthe 1 2\n", 1, "a word and the numbers of its vector were expected, not a header or nothing"),
        ("a 1 2 3\nthe 1 2\n", 2, "the first line has 3 numbers, this one 2"),
        ("a 1 2 3\nthe 1 two 3\n", 2, "'two' is not a number"),
        ("a 1 2 3\nthe 1 nan 3\n", 2, "'nan' is not a finite number of type float32"),
        ("the 1 2 -inf\n", 1, "'-inf' is not a finite number of type float32"),
        ("the 1 1e39 3\n", 1, "'1e39' is not a finite number of type float32"),
        (b"a 1 2 3\n\xff 1 2 3\n", 2, "this is not UTF-8 text"),
    ],
)
def test_malformed_vectors(write, text, line, message):
    refuses(lambda file: read_vectors(file, Vocabulary(["the"])), write(text), line, message)


def test_byte_order_marks(write):
    mark = "\N{ZERO WIDTH NO-BREAK SPACE}"
    assert read_sst(write(f"{mark}(2 a)"), Vocabulary())[0].tree == 1
    assert read_ptb(write(f"{mark}(UH yes)")) == [Constituent("UH", ("yes",))]
    assert read_conllu(write(mark + row(1, "Yes", "INTJ", 0, "root")))[0].words == ["Yes"]
    assert read_vectors(write(f"{mark}the 1 2\n"), Vocabulary(["the"])).found == 1
    assert read_sick(sick_folder(write, **{n.replace(".", "_"): mark + t for n, t in SICK.items()}), Vocabulary())
    refuses(lambda file: read_sst(file, Vocabulary()), write(mark.encode() + b"(2 a)\n\xff"), 2, "this is not UTF-8")


def test_vectors_of_other_words(write):
    with pytest.raises(ValueError, match="has a vector for none of the 2 words"):
        read_vectors(write("a 1 2\n"), Vocabulary(["the"]))


def test_vocabulary():
    words = Vocabulary(["a", "b", "a"])
    assert (len(words), "b" in words, "c" in words, words.word(2)) == (3, True, False, "b")
    words.freeze()
    assert (words["c"], words["b"], len(words)) == (0, 2, 3)
    assert repr(words) == "Vocabulary(3 words, frozen)"
