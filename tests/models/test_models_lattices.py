"""Lattice networks: batched as in the plain loop, in a few types, with the paper's weights of words."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch import Static
from jitbatch.data import Lattice, make_lattices
from jitbatch.models import LatticeGRU, LatticeLSTM, State


def lattice(characters: list[int], words: dict[tuple[int, int], int]) -> Lattice:
    tags = np.arange(len(characters), dtype=np.int32) % 3
    return Lattice(np.array(characters, np.int32), Static(tuple(words)), np.array([*words.values()], np.int32), tags)


SAMPLES = [
    lattice([1, 2, 3, 4], {(0, 1): 1, (1, 3): 2, (0, 3): 3, (2, 3): 1}),
    lattice([5], {}),
    lattice([2, 3], {(0, 1): 0}),
]
MODELS = {kind.__name__: kind(6, 4, 3, 3, 4, rngs=nnx.Rngs(0)) for kind in (LatticeLSTM, LatticeGRU)}


@through_samples_and_plan
@pytest.mark.parametrize("name", MODELS)
def test_loss(name: str, through: str) -> None:
    assert_batches_like_loop(MODELS[name], "loss", SAMPLES, through)


def test_predicts() -> None:
    assert_predicts_like_loop(MODELS["LatticeLSTM"], "predict", SAMPLES)


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_words_is_the_same_few_types(name: str) -> None:
    model = MODELS[name]
    few, many = (lattice([1] * n, {(i, n - 1): 1 for i in range(n - 1)}) for n in (3, 9))
    plans = [model.loss.plan([one, *SAMPLES], like=None) for one in (few, many)]
    assert plans[0].summary.types == plans[1].summary.types == 12
    (samples,) = make_lattices(0, [16], characters=6, words=4)
    assert model.loss.plan(samples, like=None).summary.types == 12


def test_memories_of_words_are_weighted_by_normalised_gates() -> None:
    """A softmax over the gates of the words that end here and the character's own, for each entry of the memory."""
    model: Any = MODELS["LatticeLSTM"]
    before = model.character(1, model.character(2, State(jnp.zeros(4), jnp.zeros(4)), []), [])
    words = [jnp.array([0.5, -1.0, 0.25, 2.0]), jnp.array([1.0, 0.5, -0.5, -2.0])]
    after = model.character(3, before, words)
    x = model.embed_character(jnp.asarray(3))
    i, _, o, u = jnp.split(model.gates(jnp.concatenate([x, before.h])), 4)
    gates = jnp.stack([jax.nn.sigmoid(i), *(jax.nn.sigmoid(model.link(jnp.concatenate([x, w]))) for w in words)])
    weights = jax.nn.softmax(gates, axis=0)
    memory = (weights * jnp.stack([jnp.tanh(u), *words])).sum(0)
    np.testing.assert_allclose(after.c, memory, rtol=1e-5)
    np.testing.assert_allclose(after.h, jax.nn.sigmoid(o) * jnp.tanh(memory), rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_word_leads_from_its_first_to_its_last_character(name: str) -> None:
    model = MODELS[name]
    given: list[tuple[Any, Any]] = []

    def character(number: int, before: Any, words: Any) -> int:
        given.append((before, words))
        return int(number)

    sample = lattice([5, 4, 3, 2], {(1, 3): 0, (0, 3): 1, (0, 1): 2})
    states = model.states(sample, "nothing", lambda _, state: state, character)
    assert states == [5, 4, 3, 2]
    assert [before for before, _ in given] == ["nothing", 5, 4, 3]
    assert [words for _, words in given] == [[], [5], [], [4, 5]]
