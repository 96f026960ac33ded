"""Models that look at values: batches are the loop of `jitbatch.run`, and realised plans have its gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, through_samples_and_plan

import jitbatch
from jitbatch.models import DRNN, RNNG, Decoder, EarlyExit, StackLSTMParser
from jitbatch.models.rnng import words_of

RANDOM = np.random.default_rng(3)
VECTORS = [jnp.asarray(RANDOM.normal(size=4), jnp.float32) for _ in range(6)]
SENTENCES = [RANDOM.integers(0, 10, 3 + number % 2) for number in range(6)]


def scaled(model: Any, factor: float) -> Any:
    """The model with larger weights, so that its samples do not all decide alike."""
    graph, state = nnx.split(model)
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf * factor, state))


MODELS: dict[str, Any] = {
    "early exit": (EarlyExit(10, 3, 4, 4, 0.5, rngs=nnx.Rngs(0)), "classify", SENTENCES),
    "generation": (scaled(DRNN(5, 4, 3, 3, rngs=nnx.Rngs(1)), 2.0), "generate", VECTORS),
    "parsing": (scaled(RNNG(10, 3, 4, 4, 3, rngs=nnx.Rngs(4)), 4.0), "decode", SENTENCES),
    "greedy": (scaled(Decoder(5, 4, 6, rngs=nnx.Rngs(2)), 2.0), "greedy", VECTORS),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_the_loop(name: str) -> None:
    model, method, samples = MODELS[name]
    rolled = getattr(model, method).rollout(samples)
    wanted = np.stack([jitbatch.run(getattr(model, method)(sample)) for sample in samples])
    np.testing.assert_allclose(rolled.outputs, wanted, rtol=1e-4, atol=1e-5)
    assert len(set(rolled.decisions)) > 1, "samples decide differently"


def sentences(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 10, 3 + number % 3) for number in range(8)]


def vectors(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [jnp.asarray(3 * random.normal(size=8), jnp.float32) for _ in range(8)]


def tagged(seed: int) -> tuple[list[Any], list[Any]]:
    words = sentences(seed)
    return words, [some % 4 for some in words]


OF_MANY_ANSWERS: dict[str, Any] = {
    "decoder": (scaled(Decoder(60, 8, 6, rngs=nnx.Rngs(2)), 2.0), "greedy", lambda seed: (vectors(seed),)),
    "generation": (scaled(DRNN(30, 8, 3, 3, rngs=nnx.Rngs(1)), 2.0), "generate", lambda seed: (vectors(seed),)),
    "grammar": (scaled(RNNG(10, 8, 4, 4, 3, rngs=nnx.Rngs(4)), 4.0), "decode", lambda seed: (sentences(seed),)),
    "parser": (scaled(StackLSTMParser(10, 4, 8, 3, 4, rngs=nnx.Rngs(5)), 4.0), "decode", tagged),
}


@pytest.mark.parametrize("name", OF_MANY_ANSWERS)
def test_other_answers_need_no_other_cells(name: str) -> None:
    model, method, samples = OF_MANY_ANSWERS[name]
    function = getattr(model, method)
    first = function.rollout(*samples(0))
    tables = getattr(type(model), method).flight(model, *([] for _ in samples(0)), room=8).tables
    known = len(tables.kinds), len(tables.shared)
    again = function.rollout(*samples(1))
    assert set(again.decisions) != set(first.decisions)
    assert (len(tables.kinds), len(tables.shared)) == known


@pytest.mark.parametrize("name", ["greedy", pytest.param("generation", marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_loop(name: str) -> None:
    model, method, samples = MODELS[name]
    found = nnx.grad(lambda model: getattr(model, method).batch(samples).sum())(model)
    wanted = nnx.grad(lambda model: sum(jitbatch.run(getattr(model, method)(sample)) for sample in samples))(model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, wanted)


TREES = [(0, [(1, [3, 4]), 5]), (2, [6]), (0, [1, (1, [(2, [7, 8, 9])]), 2]), (1, [4])]


@through_samples_and_plan
def test_the_loss_of_a_grammar(through: str) -> None:
    assert_batches_like_loop(MODELS["parsing"][0], "loss", TREES, through)


def test_trees_that_are_parsed_have_the_words_of_their_sentence_and_the_loss_of_their_decisions() -> None:
    model, _, sentences = MODELS["parsing"]
    trees = model.parse(sentences)
    assert [list(words_of(tree)) for tree in trees] == [sentence.tolist() for sentence in sentences]
    np.testing.assert_allclose(model.loss.batch(trees), -model.decode.batch(sentences), rtol=1e-4, atol=1e-5)


def test_beam_search() -> None:
    model, _, samples = MODELS["greedy"]
    greedy = model.greedy.rollout(samples)
    for one, sample, score, words in zip(
        model.beam.batch(samples), samples, greedy.outputs, greedy.decisions.answers, strict=True
    ):
        wanted, likely = jitbatch.run(model.beam(sample))
        assert [int(word) for word in one[0]] == wanted
        assert one[1] == pytest.approx(likely, rel=1e-4)
        assert wanted == words or likely >= score - 1e-4, "a beam finds nothing worse than greedy words"


def test_trees_are_the_decisions() -> None:
    model, _, samples = MODELS["generation"]
    trees = [jitbatch.run(model.trees(sample)) for sample in samples]

    def labels(trees: Any) -> list[int]:
        return [found for label, children in trees for found in (label, *labels(children))]

    answers = model.generate.rollout(samples).decisions.answers
    assert [labels(one) for one in trees] == [[label for label, _ in one] for one in answers]
