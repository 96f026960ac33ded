"""Oracle actions of trees, the toy language, and both as samples."""

import itertools

import numpy as np
import pytest

from jitbatch.data import Parsed, Vocabulary, make_toy_language, tagged, transitions
from jitbatch.data.transitions import (
    LEFT,
    RIGHT,
    SHIFT,
    action_number,
    legal_actions,
    move_and_relation,
    oracle,
    tree_of,
)
from jitbatch.data.trees import check_heads


def all_trees(words):
    for heads in itertools.product(range(words + 1), repeat=words):
        try:
            check_heads(heads, words)
        except ValueError:
            continue
        yield list(heads)


def is_projective(heads):
    arcs = [(min(a, b), max(a, b)) for a, b in enumerate(heads, 1) if b]
    root = heads.index(0) + 1
    crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
    return not crossing and not any(a < root < b for a, b in arcs)


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_oracle_makes_every_projective_tree_and_no_other(words):
    trees = list(all_trees(words))
    assert len(trees) == words ** (words - 1)  # Cayley
    for heads in trees:
        moves = oracle(heads)
        assert (moves is not None) == is_projective(heads)
        if moves is not None:
            assert len(moves) == 2 * words - 1
            assert tree_of([action_number(move, 0) for move in moves], words)[0] == heads


def test_oracle_actions_are_legal():
    moves = oracle([2, 4, 2, 0, 4])
    stack, buffer = 0, 5
    for move in moves:
        assert legal_actions(stack, buffer, 3)[move]
        stack, buffer = (stack + 1, buffer - 1) if move == SHIFT else (stack - 1, buffer)
    assert (stack, buffer) == (1, 0)
    assert not legal_actions(stack, buffer, 3).any()


def test_actions_have_numbers():
    numbers = [action_number(move, relation) for relation in range(3) for move in (LEFT, RIGHT)]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert [move_and_relation(n) for n in (0, 1, 4)] == [(SHIFT, 0), (LEFT, 0), (RIGHT, 1)]


def test_transitions_restore_the_tree_and_count_what_is_not_projective():
    good = Parsed(["She", "saw", "him"], ["PRON", "VERB", "PRON"], [2, 0, 2], ["nsubj", "root", "obj"])
    crossed = Parsed(["a", "b", "c", "d"], ["X"] * 4, [3, 4, 0, 3], ["dep", "dep", "root", "dep"])
    words, tags, relations = Vocabulary(), Vocabulary(), Vocabulary()
    samples, skipped = transitions([good, crossed], words, tags, relations)
    assert skipped == 1
    (sample,) = samples
    assert sample.moves.value == (SHIFT, SHIFT, LEFT, SHIFT, RIGHT)
    heads, labels = tree_of(sample.actions.tolist(), 3)
    assert heads == good.heads
    assert [relations.word(labels[0]), relations.word(labels[2])] == ["nsubj", "obj"]
    assert sample.tags.tolist() == [1, 2, 1]


def test_toy_language():
    train, test = make_toy_language(0, [300, 100])
    assert (len(train), len(test)) == (300, 100)
    assert len({tuple(one.words) for one in (*train, *test)}) == 400
    for one in train:
        check_heads(one.heads, len(one.words))
        assert one.relations[one.heads.index(0)] == "root"
    assert transitions(train, Vocabulary(), Vocabulary(), Vocabulary()).skipped == 0
    assert make_toy_language(0, [300, 100]) == [train, test]


def test_toy_language_cannot_be_tagged_word_by_word():
    (sentences,) = make_toy_language(0, [500])
    samples = tagged(sentences, Vocabulary(), Vocabulary())
    words, tags = (np.concatenate([one[i] for one in samples]) for i in range(2))
    counts = np.zeros((words.max() + 1, tags.max() + 1), int)
    np.add.at(counts, (words, tags), 1)
    assert 0.7 < counts.max(axis=1).sum() / counts.sum() < 0.9


def test_spelled_words():
    (sample,) = tagged([Parsed(["abba", "b"], ["X", "Y"], [0, 1], ["root", "dep"])], *(Vocabulary() for _ in range(3)))
    assert [one.word for one in sample.words] == [1, 2]
    assert [one.characters.tolist() for one in sample.words] == [[1, 2, 2, 1], [2]]
