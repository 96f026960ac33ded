"""Taggers, the parser, sequence to sequence and nested networks: batched as in the plain loop."""

import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch import Static
from jitbatch.data import (
    Document,
    Parsed,
    Translation,
    Vocabulary,
    make_documents,
    make_maxima,
    make_reversals,
    tagged,
    transitions,
)
from jitbatch.data.transitions import move_and_relation, tree_of
from jitbatch.models import CharacterTagger, NestedRNN, Seq2Seq, SetTransformer, StackLSTMParser, Tagger
from jitbatch.models.parser import after

SENTENCES = [
    Parsed(["She", "saw", "him"], ["PRON", "VERB", "PRON"], [2, 0, 2], ["nsubj", "root", "obj"]),
    Parsed(["Go"], ["VERB"], [0], ["root"]),
    Parsed(["A", "saw", "saw", "her"], ["DET", "NOUN", "VERB", "PRON"], [2, 3, 0, 3], ["det", "nsubj", "root", "obj"]),
]
WORDS, TAGS, CHARACTERS, RELATIONS = (Vocabulary() for _ in range(4))
TAGGED = tagged(SENTENCES, WORDS, TAGS)
SPELLED = tagged(SENTENCES, WORDS, TAGS, CHARACTERS)
TRANSITIONS = transitions(SENTENCES, WORDS, TAGS, RELATIONS).samples

REVERSALS = [
    Translation(np.array(source, np.int32), np.array(target, np.int32))
    for source, target in (([1, 2, 5], [2, 1, 0]), ([3], [4, 4, 1, 0]), ([4, 4], [0]))
]
DOCUMENTS = [
    Document(tuple(np.array(words, np.int32) for words in sentences), label)
    for sentences, label in (([[1, 2, 3], [4]], 0), ([[5]], 1), ([[1], [2, 2], [3, 4]], 2))
]


def make(name):
    rngs = nnx.Rngs(0)
    if name == "words":
        return Tagger(len(WORDS), len(TAGS), 3, 4, rngs=rngs), TAGGED
    if name == "characters":
        return CharacterTagger(len(WORDS), len(CHARACTERS), len(TAGS), 3, 4, 2, 3, rngs=rngs), SPELLED
    if name == "sets":
        return SetTransformer(1, 4, 2, 2, 1, rngs=rngs), make_maxima(0, [3], lengths=(1, 4))[0]
    if name == "seq2seq":
        return Seq2Seq(6, 5, 3, 4, rngs=rngs), REVERSALS
    if name == "nested":
        return NestedRNN(6, 3, 3, 4, rngs=rngs), DOCUMENTS
    return StackLSTMParser(len(WORDS), len(TAGS), len(RELATIONS), 3, 4, rngs=rngs), TRANSITIONS


MODELS = {name: make(name) for name in ("words", "characters", "parser", "seq2seq", "nested", "sets")}
NAMES = ["words", pytest.param("characters", marks=pytest.mark.slow), "parser", "seq2seq", "nested", "sets"]


@through_samples_and_plan
@pytest.mark.parametrize("name", NAMES)
def test_loss(name, through):
    assert_batches_like_loop(MODELS[name][0], "loss", MODELS[name][1], through)


def inputs_of(name, samples):
    if name in ("words", "characters"):
        return [one.words for one in samples]
    return [one.elements for one in samples] if name == "sets" else samples


@pytest.mark.parametrize("name", NAMES)
def test_predicts(name):
    model, samples = MODELS[name]
    assert_predicts_like_loop(model, "predict", inputs_of(name, samples))


def test_parser_batches_by_what_it_does():
    """However long sentences are and whatever is done with them, there is one type of cell for each part."""
    model, samples = MODELS["parser"]
    assert model.loss.plan(samples).summary.types == 9


def greedy(parser, words, tags):
    """One sentence, one action after the other, without batching."""
    now, actions = parser.start(words, tags), []
    while now.buffer or len(now.stack) > 1:
        action = int(parser.logits(now).argmax())
        actions.append(action)
        move = move_and_relation(action)[0]
        now = after(now, move, *parser.act(now, Static(move), action))
    return actions


def test_parse_is_greedy_for_each_sentence():
    parser, samples = MODELS["parser"]
    words, tags = [one.words for one in samples], [one.tags for one in samples]
    parsed = parser.parse(words, tags)
    assert parsed == [greedy(parser, *one) for one in zip(words, tags, strict=True)]
    for actions, sentence in zip(parsed, words, strict=True):
        assert len(actions) == 2 * len(sentence) - 1
        assert sum(head == 0 for head in tree_of(actions, len(sentence))[0]) == 1


def test_illegal_actions_are_never_likely():
    parser, samples = MODELS["parser"]
    now = parser.start(samples[0].words, samples[0].tags)
    assert np.asarray(parser.logits(now)).argmax() == 0
    assert (np.asarray(parser.logits(now))[1:] < -1e8).all()


def test_seq2seq_of_any_lengths_is_a_few_types():
    """Two embeddings, two LSTMs, scores, losses and their sum; the longest of both is as many steps."""
    model = MODELS["seq2seq"][0]
    for length in (4, 15):
        (samples,) = make_reversals(0, [9], words=5, lengths=(length, length))
        summary = model.loss.plan(samples, like=None).summary
        assert (summary.types, summary.steps) == (7, 2 * length + 1 + 5)


def test_seq2seq_is_given_the_words_before():
    """The scores of a word do not depend on it or on later ones."""
    model, (sample, *_) = MODELS["seq2seq"]
    scores = model.logits(sample)
    others = model.logits(sample._replace(target=np.array([2, 3, 0], np.int32)))
    assert len(scores) == 3
    np.testing.assert_array_equal(scores[:2], others[:2])
    assert np.abs(scores[2] - others[2]).max() > 1e-4


def test_nested_loops_of_any_lengths_are_a_few_types():
    """Words before the loop and in it, sentences, scores and losses."""
    model = MODELS["nested"][0]
    for most in (3, 7):
        (samples,) = make_documents(0, [9], words=6, lengths=(1, most), sentences=(1, most))
        assert model.loss.plan(samples, like=None).summary.types == 5


def test_nested_loops_begin_where_the_outer_one_stands():
    model, _ = MODELS["nested"]
    h = model.read_sentence(np.zeros(4, np.float32), model.read_word(np.zeros(4, np.float32), 5))
    inner = model.read_word(model.read_word(h, 1), 2)
    expected = model.out(model.read_sentence(h, inner))
    np.testing.assert_allclose(model.logits((np.array([5]), np.array([1, 2]))), expected, rtol=1e-5)
