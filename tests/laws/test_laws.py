"""Laws of batching, by hypothesis, on random trees and random small graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zoo import (
    INPUT,
    VOCAB,
    Params,
    assert_bits,
    assert_same,
    dag_params,
    gradients,
    named,
    tree_params,
)

from jitbatch import Static, jitbatch

# Every new width of a step is a kernel to compile: sizes are bounded, and examples are few.
MAX_BATCH = 4
MAX_NODES = 4

laws = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

token_trees = st.recursive(st.integers(0, VOCAB - 1), lambda trees: st.tuples(trees, trees), max_leaves=MAX_NODES)


@st.composite
def dags(draw: Any) -> dict[str, Any]:
    """A graph of a few nodes, each with at most two of the nodes before it as operands."""
    size = draw(st.integers(1, MAX_NODES))
    edges = [tuple(draw(st.lists(st.integers(0, i - 1), max_size=2))) if i else () for i in range(size)]
    values = np.random.default_rng(draw(st.integers(0, 3))).normal(size=(size, INPUT))
    return {"x": jnp.asarray(values, jnp.float32), "edges": Static(tuple(edges))}


TREES = tree_params(jax.random.key(0))
DAGS = dag_params(jax.random.key(0))
FAMILIES: dict[str, tuple[Callable[[Any, Any], Any], Params, st.SearchStrategy[Any]]] = {
    "trees": (named("binary_tree").fun, TREES, token_trees),
    "bare trees": (named("bare_tree_lstm").fun, TREES, token_trees),
    "graphs": (named("dag").fun, DAGS, dags()),
}

families = pytest.mark.parametrize("family", FAMILIES)
granularities = pytest.mark.parametrize("granularity", ["op", "auto"])


def batch_of(samples: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(samples, min_size=1, max_size=MAX_BATCH)


@families
@granularities
@laws
@given(data=st.data())
def test_batching_equals_mapping(family: str, granularity: Any, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    got = jitbatch(fun, granularity=granularity).batch(params, samples)
    assert_same(got, jnp.stack([fun(params, sample) for sample in samples]))


@families
@settings(laws, max_examples=6)
@given(data=st.data())
def test_gradients_commute_with_batching(family: str, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    got = gradients(jitbatch(fun).batch, params, samples)
    want = gradients(lambda p, s: jnp.stack([fun(p, sample) for sample in s]), params, samples)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


@families
@granularities
@laws
@given(data=st.data())
def test_permuting_samples_permutes_outputs(family: str, granularity: Any, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    order = data.draw(st.permutations(range(len(samples))))
    batched = jitbatch(fun, granularity=granularity)
    straight = np.asarray(batched.batch(params, samples))
    permuted = batched.batch(params, [samples[i] for i in order])
    assert_bits(permuted, straight[np.array(order)])


@families
@pytest.mark.parametrize("policy", ["depth", "agenda"])
@settings(laws, max_examples=6)
@given(data=st.data())
def test_permutation_law_holds_for_each_policy(family: str, policy: Any, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    batched = jitbatch(fun, policy=policy, dedupe=False)
    straight = np.asarray(batched.batch(params, samples))
    assert_bits(batched.batch(params, samples[::-1]), straight[::-1])


@families
@laws
@given(data=st.data())
def test_concatenating_batches_concatenates_outputs(family: str, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    first, second = data.draw(batch_of(strategy)), data.draw(batch_of(strategy))
    batched = jitbatch(fun)
    together = batched.batch(params, first + second)
    apart = jnp.concatenate([batched.batch(params, first), batched.batch(params, second)])
    assert_same(together, apart)


@families
@pytest.mark.parametrize("dedupe", [True, False])
@laws
@given(data=st.data())
def test_duplicates_give_equal_rows(family: str, dedupe: bool, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    rows = np.asarray(jitbatch(fun, dedupe=dedupe).batch(params, samples + samples))
    assert_bits(rows[: len(samples)], rows[len(samples) :])


@families
@settings(laws, max_examples=6)
@given(data=st.data())
def test_a_plan_gives_the_results_of_its_samples(family: str, data: st.DataObject) -> None:
    fun, params, strategy = FAMILIES[family]
    samples = data.draw(batch_of(strategy))
    batched = jitbatch(fun)
    assert_same(batched.batch(params, batched.plan(params, samples)), batched.batch(params, samples))
