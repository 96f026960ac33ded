"""Maxima and minima of any number of values: what they are, and how their gradients are shared."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal, primitives
from test_reductions import EVERY, SAMPLES, W, assert_batches
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.util import compat


@pytest.mark.parametrize("options", EVERY, ids="-".join)
def test_equal_extremes_share_a_gradient(options: Any) -> None:
    def fun(p: Any, xs: Any) -> Any:
        rows = [x @ p["w"] for x in xs]
        return jnp.stack([*rows, p["b"], p["b"], *rows[:1], *rows]).max(0), jnp.stack([*rows, *rows]).min(0)

    x = np.float32([1, -1])
    assert_batches(fun, [[x], [x, x], [x, -x, x, x]], options=[options])


def test_an_extreme_of_what_cells_return_of_the_parameters() -> None:
    @jitbatch
    def bias(p: Any, x: Any) -> Any:
        return p["b"]

    def fun(p: Any, xs: Any) -> Any:
        return jnp.tanh(jnp.stack([bias(p, x) for x in xs]).max(0))

    one = SAMPLES[:1]
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, one)
    for granularity, executor in EVERY:
        batched = jitbatch(fun, granularity=granularity, executor=executor)
        assert_same(gradients(batched.batch, W, one), want)


def test_the_gradient_of_an_extreme_is_as_exact_as_the_extreme() -> None:
    def fun(p: Any, xs: Any) -> Any:
        y = p["b"] * jnp.tanh(p["w"]).sum() + xs[0]
        return jnp.stack([y, y, y]).max(0)

    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), W)
        samples = [[np.float64([0.3, -0.7])], [np.float64([0.1, 0.9])]]
        assert_batches(fun, samples, rtol=1e-12, params=params)


def test_extremes_of_integers() -> None:
    def fun(p: Any, xs: Any) -> Any:
        numbers = [(9 * x).astype(jnp.int32) for x in xs]
        return jnp.stack(numbers).max(0), jnp.stack(numbers).min(0), jnp.stack([x @ p["w"] for x in xs]).max(0)

    assert_batches(fun, SAMPLES[:2], options=EVERY[1:3])


def evaluated_twice(jaxpr: Any, consts: Any, *args: Any) -> list[Any]:
    """What a jaxpr computes where maxima and minima read terms with other last bits than comparisons do: XLA may
    compute a term anew in each place that reads it, here with one rounding for a product and a sum, there with two."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        body = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if body is not None:
            made = evaluated_twice(body.jaxpr, body.consts, *inputs)
        else:
            if eqn.primitive in (primitives.max_p, primitives.min_p):
                inputs = [jnp.nextafter(value, jnp.full_like(value, np.inf)) for value in inputs]
            made = compat.evaluate(eqn, inputs)
        env.update(zip(eqn.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_the_gradient_of_an_extreme_does_not_depend_on_its_last_bits(reduce: Any) -> None:
    """No term need be equal to the result."""

    def fun(p: Any, xs: Any) -> Any:
        return reduce(jnp.stack([x * p["b"] for x in (*xs, xs[0])]), 0)

    grad = jax.grad(lambda p: jnp.sum(jitbatch(fun, granularity="op", executor="dispatch").batch(p, SAMPLES)))
    closed = jax.make_jaxpr(grad)(W)
    assert reduce.__name__ in str(closed)
    got = jax.jit(functools.partial(evaluated_twice, closed.jaxpr, closed.consts))(*jax.tree.leaves(W))
    assert_same(got, jax.tree.leaves(jax.grad(lambda p: sum(jnp.sum(fun(p, xs)) for xs in SAMPLES))(W)))
