"""Running a plan: shared values once, outputs as asked for, compiled programs that can be forgotten."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from zoo import INPUT, Params, assert_bits, assert_same, normal, rnn_params, stack

from jitbatch import clear_caches, jitbatch
from jitbatch.execute import arenas
from jitbatch.execute.fused import executor as fused_executor

EXECUTORS = ("fused", "dispatch")
PARAMS = rnn_params(jax.random.key(0))
RNG = np.random.default_rng(0)
SAMPLES = [normal(RNG, length, INPUT) for length in (3, 1, 2)]


@jitbatch
def step(gain: Array, params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + gain * h)


@jitbatch
def last(gain: Array, h: Array) -> Array:
    return gain - h


def states(params: Params, xs: Array) -> dict[str, Any]:
    gain = jnp.sinh(params["b"])
    h = functools.reduce(lambda h, x: step(gain, params, x, h), xs, params["h0"])
    return {"h": last(gain, h), "gain": gain, "x": xs[0]}


WANT = [states(PARAMS, xs) for xs in SAMPLES]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_outputs_stacked_and_as_a_list(executor: str) -> None:
    stacked = jitbatch(states, executor=executor)
    assert_same(stacked.batch(PARAMS, stacked.plan(PARAMS, SAMPLES)), stack(WANT))
    assert_same(stacked.batch(PARAMS, SAMPLES), stack(WANT))
    listed = jitbatch(states, executor=executor, out="list")
    assert_same(listed.batch(PARAMS, listed.plan(PARAMS, SAMPLES)), WANT)
    assert_same(listed.batch(PARAMS, SAMPLES), WANT)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_list_of_different_outputs(executor: str) -> None:
    batched = jitbatch(lambda params, xs: (xs, *states(params, xs[:2])["h"][: len(xs)]), executor=executor, out="list")
    got = batched.batch(PARAMS, batched.plan(PARAMS, SAMPLES))
    assert_same(got, [batched.__wrapped__(PARAMS, xs) for xs in SAMPLES])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_shared_values_are_computed_once(executor: str) -> None:
    """However many cells, samples and outputs read them."""
    batched = jitbatch(states, executor=executor)
    plan = batched.plan(PARAMS, SAMPLES)
    program = str(jax.make_jaxpr(lambda params: batched.batch(params, plan))(PARAMS))
    assert program.count(" sinh ") == 1


def test_shared_values_are_those_of_the_arguments() -> None:
    batched = jitbatch(lambda params, x: x + params["b"] @ (2.0 * params["h"]))
    plan = batched.plan(PARAMS, [1.0, 2.0])
    for scale in (1.0, -3.0):
        params = jax.tree.map(lambda leaf, scale=scale: scale * leaf, PARAMS)
        assert_same(batched.batch(params, plan), stack([batched.__wrapped__(params, x) for x in (1.0, 2.0)]))


def test_clear_caches_forgets_programs_and_changes_no_result() -> None:
    batched = jitbatch(states, executor="fused")
    plan = batched.plan(PARAMS, SAMPLES)
    before = batched.batch(PARAMS, plan)
    assert fused_executor._programs.info().currsize
    assert batched.batch(PARAMS, plan) is not None
    assert fused_executor._programs.info().hits
    clear_caches()
    assert fused_executor._programs.info() == (0, 0, fused_executor._programs.maxsize, 0)
    assert arenas._shared_programs.info().currsize == 0
    assert_bits(batched.batch(PARAMS, plan), before)
    assert_bits(batched.batch(PARAMS, batched.plan(PARAMS, SAMPLES)), before)


def test_plans_with_equal_static_parts_share_a_program() -> None:
    clear_caches()
    batched = jitbatch(states, executor="fused")
    first = batched.plan(PARAMS, SAMPLES)
    batched.batch(PARAMS, first)
    batched.batch(PARAMS, batched.plan(PARAMS, [-xs for xs in SAMPLES]))
    assert fused_executor._programs.info().currsize == 1


def test_lists_of_results_compile_for_rounded_sizes() -> None:
    @jitbatch(out="list", executor="dispatch")
    def halves(scale: Array, x: Array) -> tuple[Array, Array]:
        return scale * x, x / 2

    def run(samples: int) -> None:
        xs = np.arange(3.0 * samples, dtype=np.float32).reshape(samples, 3)
        for x, (scaled, half) in zip(xs, halves.batch(jnp.float32(2), list(xs)), strict=True):
            assert_bits((scaled, half), (2 * x, x / 2))

    before = arenas._take._cache_size()
    for samples in range(13, 25):
        run(samples)
    assert arenas._take._cache_size() - before <= 4  # of twelve sizes


def test_shared_values_that_are_read_along_many_paths() -> None:
    """Each of them is computed from the one before, which it reads twice."""

    @jitbatch
    def both(w: Any, left: Any, right: Any) -> Any:
        return jnp.tanh(w * left + right)

    def fun(w: Any, x: Any) -> Any:
        value = w
        for _ in range(60):
            value = both(w, value, value)
        return value * x

    want = [float(fun(jnp.float32(0.5), x)) for x in (1.0, 2.0)]
    np.testing.assert_allclose(jitbatch(fun).batch(jnp.float32(0.5), [1.0, 2.0]), want, rtol=1e-6)
