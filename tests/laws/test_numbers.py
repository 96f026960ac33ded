"""How exact results are, that samples do not touch each other, and that size costs no more than it must."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import WORKLOADS, Workload, gradients, is_float, named, split_floats

from jitbatch import JitbatchError, jitbatch

EXACT = [workload for workload in WORKLOADS if workload.name in ("binary_tree", "child_sum_edges", "rnn")]


def to_double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64) if is_float(leaf) else leaf, tree)


def error(got: Any, exact: Any) -> float:
    """The largest error of a float leaf, in units of that leaf's largest element."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
        b = np.asarray(b)
        if np.issubdtype(b.dtype, np.floating) and b.size:
            worst = max(worst, float(np.max(np.abs(np.asarray(a, np.float64) - b)) / max(np.max(np.abs(b)), 1e-30)))
    return worst


@pytest.mark.parametrize("executor", [pytest.param("dispatch", marks=pytest.mark.slow), "fused"])
@pytest.mark.parametrize("workload", EXACT, ids=lambda workload: workload.name)
def test_errors_are_at_most_four_times_those_of_the_plain_loop(workload: Workload, executor: Any) -> None:
    params, samples = workload.draw()
    with jax.enable_x64(True):
        exact = gradients(workload.loop, to_double(params), to_double(samples), transform=jax.jit)
    loop = gradients(workload.loop, params, samples, transform=jax.jit)
    batch = gradients(jitbatch(workload.fun, executor=executor).batch, params, samples, transform=jax.jit)
    few_units = 4 * np.finfo(np.float32).eps
    for kind in (0, 1):
        assert error(batch[kind], exact[kind]) <= 4 * error(loop[kind], exact[kind]) + few_units


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_a_value_that_is_not_finite_stays_in_its_sample(bad: float, executor: Any) -> None:
    workload = named("rnn")
    params, samples = workload.draw()
    spoilt = [samples[0].at[0, 0].set(bad), *samples[1:]]
    fun = jitbatch(workload.fun, executor=executor)
    want, got = (np.asarray(x) for x in (workload.loop(params, spoilt), fun.batch(params, spoilt)))
    assert np.isnan(want[0]).any() or bad == np.inf
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert np.isfinite(got[1:]).all()


@pytest.mark.parametrize("executor", [pytest.param("dispatch", marks=pytest.mark.slow), "fused"])
@pytest.mark.parametrize("name", ["rnn", "child_sum_edges"])
def test_a_gradient_that_is_not_finite_stays_in_its_sample(name: str, executor: Any) -> None:
    workload = named(name)
    params, samples = workload.draw()
    floats, rebuild = split_floats(samples[0])
    spoilt = [rebuild([leaf * np.float32(np.nan) for leaf in floats]), *samples[1:]]
    fun = jitbatch(workload.fun, executor=executor)
    (_, (_, want)), (_, (_, got)) = (
        gradients(run, params, spoilt, True, transform=jax.jit) for run in (workload.loop, fun.batch)
    )
    assert np.isnan(got[0]).any()
    for ours, theirs in zip(got[len(floats) :], want[len(floats) :], strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def step(w: Any, x: Any, h: Any) -> Any:
    return jnp.tanh(w * h + x)


def chain(w: Any, xs: Any) -> Any:
    h = w
    for x in xs:
        h = cell(w, x, h)
    return h


cell = jitbatch(step)


def seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@pytest.mark.parametrize("length", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_chain(length: int) -> None:
    w = jnp.float32([0.5, -0.5])
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(length, 2)), jnp.float32)
    fun = jitbatch(chain)
    plan = fun.plan(w, [xs])
    got = jax.jit(jax.value_and_grad(lambda w: fun.batch(w, plan).sum()))(w)

    def scanned(w: Any) -> Any:
        return jax.lax.scan(lambda h, x: (step(w, x, h), None), w, xs)[0].sum()

    want = jax.value_and_grad(scanned)(w)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("leaves", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_leaves(leaves: int) -> None:
    fun = jitbatch(lambda w, xs: sum(jnp.tanh(w * x) for x in xs))
    xs = np.random.default_rng(0).normal(size=leaves).astype(np.float32)
    w = jnp.float32(0.5)
    got = fun.batch(w, [xs, xs[:100]])
    np.testing.assert_allclose(got, [np.tanh(0.5 * xs).sum(), np.tanh(0.5 * xs[:100]).sum()], rtol=1e-3, atol=1e-2)


def leaves_summed(w: Any, xs: Any) -> Any:
    return sum(cell(w, x, w) for x in xs)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [chain, leaves_summed])
def test_cost_is_linear_in_nodes(fun: Any) -> None:
    """Planning ten times as many nodes takes at most fifteen times as long."""
    w, rng = jnp.float32([0.5, -0.5]), np.random.default_rng(0)
    short, long = (jnp.asarray(rng.normal(size=(length, 2)), jnp.float32) for length in (1_000, 10_000))
    jitbatch(fun).plan(w, [short])
    times = [min(seconds(lambda: jitbatch(fun).plan(w, [xs])) for _ in range(2)) for xs in (short, long)]  # noqa: B023
    assert times[1] <= 15 * times[0], times


def test_a_sample_that_is_nested_too_deeply_is_explained() -> None:
    tree: Any = 1.0
    for _ in range(sys.getrecursionlimit() * 2):
        tree = (tree,)
    with pytest.raises(JitbatchError, match="sample 1 is nested too deeply"):
        jitbatch(lambda w, tree: w).batch(2.0, [1.0, tree])
