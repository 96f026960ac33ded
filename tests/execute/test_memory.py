"""The memory of a plan, predicted, against what XLA allots for the compiled programs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import Params, random_tree, weights

from jitbatch import Plan, jitbatch

HIDDEN = 32
FACTOR = 1.5
"""How far a prediction may be off."""

PARAMS = weights(
    embed=(50, HIDDEN),
    left=(HIDDEN, 3 * HIDDEN),
    right=(HIDDEN, 3 * HIDDEN),
    bias=(3 * HIDDEN,),
    back=(HIDDEN, HIDDEN),
    out=(HIDDEN, 5),
)(jax.random.key(0))


@jitbatch
def leaf(params: Params, word: Any) -> Any:
    return jnp.tanh(params["embed"][word])


@jitbatch
def compose(params: Params, left: Any, right: Any) -> Any:
    gate, keep, new = jnp.split(left @ params["left"] + right @ params["right"] + params["bias"], 3)
    return jax.nn.sigmoid(gate) * jnp.tanh(new) + jax.nn.sigmoid(keep) * left


@jitbatch
def carry(params: Params, back: Any, state: Any) -> Any:
    return jnp.tanh(back @ params["back"] + state)


def classify(params: Params, tree: Any) -> Any:
    def encode(tree: Any) -> Any:
        return compose(params, *map(encode, tree)) if isinstance(tree, tuple) else leaf(params, tree)

    return encode(tree) @ params["out"]


def both_ways(params: Params, words: Any) -> list[Any]:
    """A loop over the words, one back over its states, and a readout for each word."""
    ahead = back = jnp.zeros(HIDDEN)
    states = []
    for word in words:
        ahead = compose(params, ahead, leaf(params, word))
        states.append(ahead)
    scores = []
    for state in reversed(states):
        back = carry(params, back, state)
        scores.append(back @ params["out"])
    return scores


def trees(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [random_tree(rng, int(rng.integers(5, 20)), lambda: int(rng.integers(50))) for _ in range(count)]


def sentences(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(50, size=rng.integers(5, 20)).tolist()) for _ in range(count)]


SLOW = pytest.mark.slow

CASES: dict[str, tuple[Any, Any, str, str, tuple[int, int]]] = {
    "trees, fused": (classify, trees, "fused", "stack", (4, 64)),
    "trees, dispatch": (classify, trees, "dispatch", "stack", (4, 16)),
    "sentences, fused": (both_ways, sentences, "fused", "ragged", (4, 64)),
}


@functools.cache
def measured(name: str) -> list[tuple[Plan, Any, Any]]:
    """For a small and a large batch its plan, and what XLA allots for inference and training."""
    fun, samples, executor, out, sizes = CASES[name]
    batched = jitbatch(fun, executor=executor, out=out)

    def run(params: Params, plan: Plan) -> Any:
        return batched.batch(params, plan)

    def loss(params: Params, plan: Plan) -> Any:
        result = run(params, plan)
        return jnp.sum((result.rows if out == "ragged" else result) ** 2)

    def analysis(program: Any, plan: Plan) -> Any:
        return jax.jit(program).lower(PARAMS, plan).compile().memory_analysis()

    plans = [batched.plan(PARAMS, samples(size)) for size in sizes]
    return [(plan, analysis(run, plan), analysis(jax.value_and_grad(loss), plan)) for plan in plans]


def total(analysis: Any) -> int:
    return analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if "dispatch" in name else ()) for name in CASES])
def test_predictions_are_near_what_is_allotted(name: str) -> None:
    for plan, inference, training in measured(name):
        assert 1 / FACTOR < plan.memory.inference / total(inference) < FACTOR
        assert 1 / FACTOR < plan.memory.training / total(training) < FACTOR


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if "dispatch" in name else ()) for name in CASES])
def test_inference_keeps_nothing_for_a_backward_pass(name: str) -> None:
    plan, inference, training = measured(name)[1]
    assert 2 * inference.temp_size_in_bytes < training.temp_size_in_bytes
    assert 2 * plan.memory.inference < plan.memory.training


def test_memory_grows_linearly() -> None:
    batched = jitbatch(classify, dedupe=False)
    memories = [batched.plan(PARAMS, trees(16) * copies).memory for copies in (32, 64, 128)]
    for kind in ("inference", "training"):
        first, second = np.diff([getattr(memory, kind) for memory in memories])
        assert 1.9 < second / first < 2.1


def test_memory_is_printed_in_readable_units() -> None:
    plan = jitbatch(classify).plan(PARAMS, trees(4))
    small = str(plan.memory)
    assert small.endswith(" kB for training")
    assert " kB for inference, " in small


def test_a_batch_that_computes_nothing() -> None:
    memory = jitbatch(lambda params, x: x, executor="fused").plan(PARAMS, [jnp.ones(3), jnp.ones(3)]).memory
    assert 0 < memory.inference <= memory.training < 1000
