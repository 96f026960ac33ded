"""Numbers that Python computed and an operator combines with a value are data: those that differ are one type."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import Static, assert_max_compiles, jitbatch

W = {"w": np.float32([[0.3, -0.2], [0.5, 0.4]]), "b": np.float32([0.1, -0.2])}


def vectors(count: int) -> list[Any]:
    return list(np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32))


def mean_of_terms(p: Any, xs: Any) -> Any:
    return sum(jnp.tanh(x @ p["w"]) for x in xs) / len(xs)


def weighed_by_depth(p: Any, xs: Any) -> Any:
    return sum(jnp.tanh(x @ p["w"]) * 0.5**depth for depth, x in enumerate(xs))


@jitbatch
def mean_cell(p: Any, xs: list[Any]) -> Any:
    return jnp.tanh(sum(x @ p["w"] for x in xs) / len(xs))


def mean_in_a_cell(p: Any, xs: Any) -> Any:
    return mean_cell(p, xs)


def on_both_sides(p: Any, xs: Any) -> Any:
    n = len(xs)
    y = jnp.tanh(xs[0] @ p["w"])
    return (n - y) * n + n / (y + n + 2)


def from_numpy(p: Any, xs: Any) -> Any:
    return (xs[0] @ p["w"]) / np.float32(len(xs)) - np.sqrt(len(xs), dtype=np.float32)


def compared_and_rounded(p: Any, xs: Any) -> Any:
    y = xs[0] @ p["w"]
    return jnp.where(y > 1 / len(xs), y, (y // len(xs)) % len(xs))


def of_a_static_value(p: Any, xs: Any) -> Any:
    return (xs[0] @ p["w"]) * Static(len(xs)).value


def closed_over(p: Any, xs: Any) -> Any:
    scale = 1 / len(xs)

    def inner(x: Any) -> Any:
        return jnp.tanh(x @ p["w"]) * scale

    return inner(xs[0])


COMPUTED = [
    mean_of_terms, weighed_by_depth, mean_in_a_cell, on_both_sides, from_numpy, compared_and_rounded,
    of_a_static_value, closed_over,
]  # fmt: skip


@pytest.mark.parametrize("granularity", ["op", "subgraph"])
@pytest.mark.parametrize("fun", COMPUTED, ids=lambda fun: fun.__name__)
def test_numbers_that_differ_are_one_type(fun: Any, granularity: Any) -> None:
    batched = jitbatch(fun, granularity=granularity)
    few, many = [vectors(2)], [vectors(n) for n in (2, 3, 5, 7)]
    plan = batched.plan(W, few)
    assert batched.plan(W, many, like=plan).summary.types == plan.summary.types


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
@pytest.mark.parametrize("fun", COMPUTED, ids=lambda fun: fun.__name__)
def test_values_and_gradients_with_numbers_that_differ(fun: Any, executor: Any) -> None:
    samples = [vectors(n) for n in (2, 3, 5, 7)]
    batched = jitbatch(fun, executor=executor)
    plan = batched.plan(W, samples)
    want = gradients(lambda p, s: stack([fun(p, xs) for xs in s]), W, samples, transform=jax.jit)
    got = gradients(lambda p, _: batched.batch(p, plan), W, [], transform=jax.jit)
    assert_same(got, want, rtol=1e-5, atol=1e-6)


def test_numbers_that_are_written_in_the_code_are_constants() -> None:
    fun = jitbatch(lambda p, x: 2.0 * (x @ p["w"]) / 3)
    (kind,) = fun.plan(W, [vectors(1)[0]]).static.types.kinds
    assert [aval.shape for aval in kind.cell.in_avals] == [(2,), (2, 2)]


def test_a_plan_runs_for_numbers_that_it_was_not_compiled_with() -> None:
    fun = jitbatch(mean_of_terms)
    step = jax.jit(lambda p, plan: fun.batch(p, plan))
    plan = fun.plan(W, [vectors(n) for n in (7, 6, 5, 3)])
    step(W, plan)
    for lengths in ((2, 3, 4, 5), (1, 1, 6, 4)):
        samples = [vectors(n) for n in lengths]
        want = [mean_of_terms(W, xs) for xs in samples]
        with assert_max_compiles(0):
            plan = fun.plan(W, samples, like=plan)
            got = step(W, plan)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_numbers_keep_the_weak_type_that_python_gives_them() -> None:
    def halves(p: Any, xs: Any) -> Any:
        n = len(xs)
        return [jnp.asarray(x, dtype) * n for x in xs[:1] for dtype in (jnp.bfloat16, jnp.int8, jnp.float32)]

    samples = [vectors(n) for n in (2, 3)]
    for got, *want in zip(jitbatch(halves).batch(W, samples), *[halves(W, xs) for xs in samples], strict=True):
        assert {got.dtype} == {one.dtype for one in want}
        np.testing.assert_array_equal(np.float32(got), np.float32(want))


@jitbatch
def shifted(p: Any, x: Any, n: Any, m: Any) -> Any:
    return jnp.tanh(x @ p["w"]) * n + m * jnp.float32(n)


def test_numbers_that_are_arguments_are_those_of_each_call() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return shifted(p, xs[0], len(xs), jnp.float32(len(xs)) * 2)

    samples = [vectors(n) for n in (2, 3, 5)]
    want = [fun(W, xs) for xs in samples]
    batched = jitbatch(fun)
    for _ in range(2):
        np.testing.assert_allclose(batched.batch(W, samples), want, rtol=1e-5)
    assert_same(batched.batch(W, samples[::-1]), stack(want[::-1]), rtol=1e-5)


def test_numbers_that_jnp_made_of_python_s_are_data() -> None:
    def fun(p: Any, xs: Any) -> Any:
        count = jnp.zeros((), jnp.int32)
        for _ in xs:
            count = count + 1
        return (xs[0] @ p["w"]) / jnp.float32(len(xs)) - count.astype(jnp.float32)

    samples = [vectors(n) for n in (2, 3, 5)]
    assert jitbatch(fun).plan(W, samples).summary.types == 1
    np.testing.assert_allclose(jitbatch(fun).batch(W, samples), [fun(W, xs) for xs in samples], rtol=1e-5)
