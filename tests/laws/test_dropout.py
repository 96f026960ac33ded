"""Dropout as people write it, with a key of each sample: equal to the plain loop with the same keys."""

from __future__ import annotations

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sampled import every
from zoo import assert_same, stack

from jitbatch import JitbatchError, Keys, jitbatch

H = 4
SAMPLES = [list(np.random.default_rng(n).normal(size=(n, H)).astype(np.float32)) for n in (1, 2, 3, 5)]
KEYS = list(jax.random.split(jax.random.key(0), len(SAMPLES)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(H, H, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)

    def one_key(self, key: Any, xs: Any) -> Any:
        return self.dropout(sum(jnp.tanh(self.linear(x)) for x in xs), rngs=key)

    def folded(self, key: Any, xs: Any) -> Any:
        return sum(self.dropout(jnp.tanh(self.linear(x)), rngs=jax.random.fold_in(key, i)) for i, x in enumerate(xs))

    def counted(self, key: Any, xs: Any) -> Any:
        keys = Keys(key)
        return sum(self.dropout(jnp.tanh(self.linear(x)), rngs=keys()) for x in xs)

    def with_rngs(self, key: Any, xs: Any) -> Any:
        rngs = nnx.Rngs(dropout=key)
        return sum(self.dropout(jnp.tanh(self.linear(x)), rngs=rngs) for x in xs)

    def with_a_stream(self, key: Any, xs: Any) -> Any:
        rngs = nnx.Rngs(key).fork()
        return sum(self.dropout(jnp.tanh(self.linear(x)), rngs=rngs.dropout) for x in xs)

    @jitbatch
    def cell(self, key: Any, x: Any) -> Any:
        return self.dropout(jnp.tanh(self.linear(x)), rngs=key)

    @jitbatch
    def cell_with_rngs(self, key: Any, x: Any) -> Any:
        rngs = nnx.Rngs(dropout=key)
        return self.dropout(jnp.tanh(self.linear(self.dropout(x, rngs=rngs))), rngs=rngs)

    def cells(self, key: Any, xs: Any) -> Any:
        return sum(self.cell(k, x) for k, x in zip(jax.random.split(key, len(xs)), xs, strict=True))

    def cells_with_keys_of_rngs(self, key: Any, xs: Any) -> Any:
        rngs = nnx.Rngs(key)
        return sum(self.cell(rngs(), x) for x in xs)

    def cells_with_rngs(self, key: Any, xs: Any) -> Any:
        keys = Keys(key)
        return sum(self.cell_with_rngs(keys(), x) for x in xs)

    def numbers_from_a_seed(self, key: Any, xs: Any) -> Any:
        """A stream that depends on no sample, and that a decorated function advances."""
        rngs = nnx.Rngs(3)
        scaled = jitbatch(lambda x: x * rngs.uniform())
        return sum(self.cell(key, scaled(x)) for x in xs)


GRAPHDEF, STATE = nnx.split(Model(nnx.Rngs(0)))
NNX = [name for name, member in vars(Model).items() if not name.startswith("_") and not hasattr(member, "batch")]


def of_nnx(name: str) -> Any:
    return lambda state, key, xs: getattr(nnx.merge(GRAPHDEF, state), name)(key, xs)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dropout(0.5, deterministic=False)(jnp.tanh(nn.Dense(H)(x)))


class Sequence(nn.Module):
    @nn.compact
    def __call__(self, xs: Any) -> Any:
        layer = Layer()
        return sum(layer(x) for x in xs)


LAYER, SEQUENCE = Layer(), Sequence()
VARIABLES = LAYER.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, SAMPLES[0][0])
SEQUENCE_VARIABLES = SEQUENCE.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, SAMPLES[0])
linen_cell = jitbatch(lambda variables, key, x: LAYER.apply(variables, x, rngs={"dropout": key}))


def linen(variables: Any, key: Any, xs: Any) -> Any:
    return SEQUENCE.apply(variables, xs, rngs={"dropout": key})


def linen_cells(variables: Any, key: Any, xs: Any) -> Any:
    keys = Keys(key)
    return sum(linen_cell(variables, keys(), x) for x in xs)


USES = {
    **{name: (of_nnx(name), STATE) for name in NNX},
    "linen": (linen, SEQUENCE_VARIABLES),
    "linen_cells": (linen_cells, VARIABLES),
}


@pytest.mark.parametrize(("name", "executor"), every(3, itertools.product(USES, ["fused", "dispatch"])))
def test_values_and_gradients_are_those_of_the_loop_with_the_same_keys(name: str, executor: Any) -> None:
    fun, params = USES[name]
    batched = jitbatch(fun, executor=executor)
    plan = batched.plan(params, KEYS, SAMPLES)
    weights = jnp.arange(1.0, H + 1)

    def loss(run: Any) -> Any:
        return lambda params, *given: (run(params, *given) ** 2 @ weights).sum()

    def loop(params: Any) -> Any:
        return stack([fun(params, key, xs) for key, xs in zip(KEYS, SAMPLES, strict=True)])

    want = loop(params), jax.grad(loss(loop))(params)
    got = jax.jit(batched.batch)(params, plan), jax.jit(jax.grad(loss(batched.batch)))(params, plan)
    assert np.any(np.asarray(want[0]) == 0)  # something was dropped
    assert_same(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in USES if name != "numbers_from_a_seed"])
def test_the_number_of_keys_makes_no_types(name: str) -> None:
    fun, params = USES[name]
    batched = jitbatch(fun)
    few, many = slice(1, 3), slice(1, 4)
    types = [batched.plan(params, KEYS[some], SAMPLES[some]).summary.types for some in (few, many)]
    assert types[0] == types[1]


class Stateful(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(H, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda model, x: model.norm(x[None]), "BatchNorm at `norm`.*use LayerNorm, compute the statistics outside"),
        (lambda model, x: model.dropout(x), r"Dropout at `dropout`.*a random key of the sample in each call.*rngs=key"),
    ],
    ids=["BatchNorm", "Dropout"],
)
def test_state_of_a_model_is_refused_with_what_to_do(use: Any, words: str) -> None:
    with pytest.raises(JitbatchError, match=words):
        jitbatch(use).batch(Stateful(nnx.Rngs(0)), SAMPLES[3])
