"""Flows: which rows a derivative can pass through, and that all others are constants, as they are in the plain loop."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from sampled import every

from jitbatch import Static, jitbatch

W = jnp.float32([[0.5, -0.2], [0.1, 0.3]])
SAMPLES = [np.float32([[1, 2], [0, 4], [5, 0]][:n]) for n in (1, 3, 2)]
EXECUTORS = ["fused", "dispatch", "per_sample"]


@jitbatch
def step(w: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ w + jnp.sqrt(x) * h)


@jitbatch
def halved(x: Any) -> Any:
    return lax.while_loop(lambda v: v.sum() > 1, lambda v: v / 2, x)


@jitbatch
def scaled(w: Any, x: Any) -> Any:
    return jnp.sqrt(x) * w[0]


def chain(w: Any, xs: Any) -> Any:
    h = w[0] + w[1]
    for x in xs:
        h = step(w, h, x)
    return h.sum()


def total(w: Any, xs: Any) -> Any:
    return sum(scaled(w, x) for x in xs).sum() + sum(jnp.sqrt(x).sum() for x in xs)


def stopped(w: Any, xs: Any) -> Any:
    h = w[0]
    for x in xs:
        h = jnp.tanh(h @ w) * halved(lax.stop_gradient(h + x))
    return h.sum()


def data_alone(w: Any, xs: Any) -> Any:
    return (w @ halved(jnp.sqrt(halved(xs[0])))).sum()


def a_start_that_is_learned(w: Any, xs: Any) -> Any:
    """The first operand of a step is a parameter, an input or what another step made."""
    return (step(w, w[0], xs[0]) + step(w, xs[-1], xs[0]) + step(w, step(w, w[1], xs[-1]), xs[0])).sum()


def terms_that_are_shared(w: Any, xs: Any) -> Any:
    return jnp.sqrt(sum([*(x * x + 1 for x in xs), w[0], w[1] ** 2])).sum()


MODELS = [chain, total, stopped, data_alone, a_start_that_is_learned, terms_that_are_shared]


def in_turn(fun: Any, w: Any, samples: Any) -> Any:
    return jnp.stack([fun(w, sample) for sample in samples])


def derivatives(run: Any) -> Any:
    forward = jax.jvp(run, (W,), (W + 1,))[1]
    return forward, jax.grad(lambda w: run(w).sum())(W), jax.hessian(lambda w: (run(w) ** 2).sum())(W)


@functools.cache
def wanted(fun: Any) -> Any:
    """The derivatives of the plain loop."""
    return derivatives(lambda w: in_turn(fun, w, SAMPLES))


@pytest.mark.parametrize(
    ("fun", "executor", "granularity"), every(5, itertools.product(MODELS, EXECUTORS, ["subgraph", "op"]))
)
def test_derivatives_are_those_of_the_plain_loop(fun: Any, executor: str, granularity: str) -> None:
    """Also where inputs are roots of zero, whose derivative is infinite, and go through loops that have none."""
    batched = jitbatch(fun, executor=executor, granularity=granularity)
    plan = batched.plan(W, SAMPLES)
    want = wanted(fun)
    assert all(np.isfinite(one).all() for one in want)
    got = derivatives(lambda w: batched.batch(w, plan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_samples_that_are_differentiated(executor: str) -> None:
    batched = jitbatch(chain, executor=executor)
    positive = [sample + 1 for sample in SAMPLES]

    def gradients(run: Any) -> Any:
        return jax.grad(lambda w, xs: run(w, xs).sum(), argnums=(0, 1))(W, positive)

    want, got = gradients(lambda w, xs: in_turn(chain, w, xs)), gradients(batched.batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_inputs_have_no_gradient_to_compute(executor: str) -> None:
    """Of a layer on inputs, only the gradient of the weights is computed: two products and not three."""

    @jitbatch(executor=executor)
    def layer(w: Any, xs: Any) -> Any:
        return sum(project(w, x) for x in xs).sum()

    @jitbatch
    def project(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    plan = layer.plan(W, SAMPLES)
    text = jax.jit(jax.grad(lambda w: layer.batch(w, plan).sum())).lower(W).as_text()
    assert text.count("stablehlo.dot_general") == 2


def flows_of(fun: Any, samples: Any) -> dict[str, set[tuple[bool, ...]]]:
    """For the name of each cell the flows of its types."""
    program = jitbatch(fun, executor="fused").plan(W, samples).static.program
    found: dict[str, set[tuple[bool, ...]]] = {}
    for block in program.blocks:
        found.setdefault(block.kind.cell.name.split(".")[0], set()).add(block.flows)
    return found


def test_flows() -> None:
    assert flows_of(data_alone, SAMPLES)["halved"] == {(False,)}
    assert flows_of(stopped, SAMPLES)["halved"] == {(False,)}
    assert flows_of(total, SAMPLES)["scaled"] == {(False,)}
    assert flows_of(terms_that_are_shared, SAMPLES)["sum"] == {(True,)}

    def through_integers(w: Any, xs: Any) -> Any:
        return halved(xs[0] + jnp.argmax(step(w, w[0], xs[0]))).sum()

    assert flows_of(through_integers, SAMPLES)["halved"] == {(False,)}

    def by_one_of_two(w: Any, xs: Any) -> Any:
        return scaled(w, scaled(w, xs[0]) if len(xs) > 1 else xs[0]).sum()

    assert flows_of(by_one_of_two, SAMPLES)["scaled"] == {(True,)}
    assert flows_of(by_one_of_two, SAMPLES[:1])["scaled"] == {(False,)}


def test_a_constant_that_is_a_row_has_no_flow() -> None:
    def fun(w: Any, sample: Any) -> Any:
        x, kind = sample
        return step(w, scaled(w, x), np.float32([kind.value, 0])).sum()

    found = flows_of(fun, [(SAMPLES[0][0], Static(1)), (SAMPLES[1][0], Static(2))])
    assert (found["scaled"], found["step"]) == ({(False,)}, {(True, False)})
