"""Graphs in terms of types: what becomes of sums of one term."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.schedule.policies import POLICIES

W = {"w": jnp.array([[0.5, -0.2], [0.1, 0.4]]), "b": jnp.array([0.3, -0.6])}


@jitbatch
def node(p: Any, x: Any, children: list[Any]) -> Any:
    return jnp.tanh(sum(children, jnp.zeros(2)) @ p["w"] + x)


def encode(p: Any, tree: Any) -> Any:
    return node(p, tree[0], [encode(p, child) for child in tree[1:]])


def total(p: Any, xs: Any) -> Any:
    return jnp.stack(xs).sum(0)


def nested(p: Any, xs: Any) -> Any:
    """Sums of one term that is a sum of one term, of a parameter, and that are results."""
    inner = [sum([x * p["b"]], jnp.zeros(2)) for x in xs]
    return sum([sum(inner[:1], jnp.zeros(2))], jnp.zeros(2)), total(p, [p["b"]]) * xs[0], total(p, xs[:1])


X = [np.float32([i, 1 - i]) for i in range(5)]
CHAIN = (X[0], (X[1], (X[2], (X[3],))))
TREES = [CHAIN, (X[0], (X[1],), (X[2], (X[3],), (X[4],))), (X[4],), (X[2], (X[3], (X[4],), (X[0],)))]
CASES = [(encode, TREES), (encode, TREES[:1]), (total, [X[:1], X[:3], X[1:2]]), (nested, [X[:1], X[:2], X[:3]])]


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
@pytest.mark.parametrize(("fun", "samples"), CASES, ids=["trees", "a chain", "totals", "nested"])
def test_a_sum_of_one_term_is_that_term(fun: Any, samples: list[Any], executor: Any) -> None:
    batched = jitbatch(fun, executor=executor)
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, samples)
    assert_same(gradients(batched.batch, W, samples), want)


def test_sums_of_one_term_are_no_nodes() -> None:
    """Of 14 nodes, three have two children and five have one."""
    assert jitbatch(encode).plan(W, TREES).summary.nodes == 14 + 3


def test_nodes_at_the_same_height_run_together_whatever_their_number_of_children() -> None:
    """A sum of one term does not run, but takes the place in the order that it would have."""
    chain = jitbatch(encode).plan(W, [CHAIN]).summary
    both = jitbatch(encode).plan(W, [CHAIN, (X[0], (X[1], (X[2], (X[3],), (X[4],))))]).summary
    assert chain.steps == 4
    assert both.steps == 5  # one more for the sum


def grown(rng: np.random.Generator, size: int) -> Any:
    """A random tree; most nodes have one child."""
    rest, children = size - 1, []
    while rest:
        part = rest if rng.random() < 0.6 else int(rng.integers(1, rest + 1))
        children.append(grown(rng, part))
        rest -= part
    return (X[rng.integers(5)], *children)


@pytest.mark.parametrize("seed", range(12))
def test_no_policy_needs_fewer_steps_than_the_bound_or_than_layers(seed: int) -> None:
    """Though sums of one term, which do not run, have a place among the layers."""
    rng = np.random.default_rng(seed)
    trees = [grown(rng, int(rng.integers(1, 9))) for _ in range(3)]
    plans = {name: jitbatch(encode, policy=name, executor="fused").plan(W, trees) for name in POLICIES}
    fewest = {name: plan.summary.steps for name, plan in plans.items()}
    assert fewest["layers"] == min(fewest.values()), fewest
    for plan in plans.values():
        assert plan.summary.bound == plan.explain().lower_bound <= fewest["layers"]


@pytest.mark.parametrize("width", [2, 64])  # the order of types is that of their digests
def test_layers_of_which_nothing_runs(width: int) -> None:
    """All sums are of one term, and lie between nodes of two types: there are more layers of them than of any node."""

    @jitbatch
    def cell(weight: Any, word: Any, children: list[Any]) -> Any:
        return jnp.tanh(word + sum(children, jnp.zeros(width)) @ weight)

    def alternating(p: Any, tree: Any, depth: int = 0) -> Any:
        children = [alternating(p, child, depth + 1) for child in tree[1:]]
        return cell(p["weights"][depth % 2], p["embed"][tree[0]], children)

    def fun(p: Any, tree: Any) -> Any:
        return alternating(p, tree).sum()

    params = {"embed": jnp.ones((5, width)), "weights": [jnp.eye(width), jnp.eye(width) / 2]}
    samples = [(0, (1, (2, (3, (4, (0,)))))), (1, (2, (3,)))]
    batched = jitbatch(fun, executor="fused")
    plan = batched.plan(params, samples)
    assert plan.summary.bound <= plan.summary.steps
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), params, samples)
    assert_same(gradients(lambda p, _: batched.batch(p, plan), params, samples), want)
