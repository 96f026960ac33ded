"""Taggers and the parser: batched as in the plain loop."""

import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch import Static
from jitbatch.data import Parsed, Vocabulary, tagged, transitions
from jitbatch.data.transitions import move_and_relation, tree_of
from jitbatch.models import CharacterTagger, StackLSTMParser, Tagger
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


def make(name):
    rngs = nnx.Rngs(0)
    if name == "words":
        return Tagger(len(WORDS), len(TAGS), 3, 4, rngs=rngs), TAGGED
    if name == "characters":
        return CharacterTagger(len(WORDS), len(CHARACTERS), len(TAGS), 3, 4, 2, 3, rngs=rngs), SPELLED
    return StackLSTMParser(len(WORDS), len(TAGS), len(RELATIONS), 3, 4, rngs=rngs), TRANSITIONS


MODELS = {name: make(name) for name in ("words", "characters", "parser")}
NAMES = ["words", pytest.param("characters", marks=pytest.mark.slow), "parser"]


@through_samples_and_plan
@pytest.mark.parametrize("name", NAMES)
def test_loss(name, through):
    assert_batches_like_loop(MODELS[name][0], "loss", MODELS[name][1], through)


@pytest.mark.parametrize("name", NAMES)
def test_predicts(name):
    model, samples = MODELS[name]
    assert_predicts_like_loop(model, "predict", samples if name == "parser" else [one.words for one in samples])


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
