"""The dispatch executor: padding never shows, kernels are kept, shared values are computed once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import clear_caches, jitbatch
from jitbatch.execute import arenas, dispatch
from jitbatch.execute.dispatch import StepKernel, step_kernel
from jitbatch.plan.run import execute

W = np.float32([1.0, 2.0])
XS = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


@jitbatch
def cell(w: Any, x: Any) -> Any:
    return {"y": jnp.sin(w * x), "n": jnp.sum(x > 0)}


def kernels(plan: Any) -> list[StepKernel]:
    made = []
    for step in plan.static.program.step_shapes:
        made.append(step_kernel(step.kind, step.flows, True))
    return made


@pytest.mark.parametrize("count", [1, 5, 7])
def test_padding_never_reaches_a_result(count: int) -> None:
    xs = np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32)
    got = cell.batch(W, list(xs))
    want = jax.vmap(cell, in_axes=(None, 0))(W, xs)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6, strict=True)
    np.testing.assert_array_equal(got["n"], want["n"], strict=True)


def test_padding_makes_no_nan_in_a_gradient() -> None:
    @jitbatch
    def root(w: Any, x: Any) -> Any:
        return jnp.sqrt(w * x)  # the derivative at 0 is infinite, and a padding row of zeros would make 0 * inf

    def loss(w: Any, x: Any) -> Any:
        return root.batch(w, list(x)).sum()

    xs = jnp.arange(1.0, 6.0)
    for got, want in zip(
        jax.grad(loss, (0, 1))(jnp.float32(2), xs),
        jax.grad(lambda w, x: jnp.sqrt(w * x).sum(), (0, 1))(jnp.float32(2), xs),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_kernels_are_kept_and_have_stable_names() -> None:
    clear_caches()
    fun = jitbatch(lambda w, x: cell(w, x), executor="dispatch")
    plan = fun.plan(W, list(XS))
    (kernel,) = kernels(plan)
    assert kernels(fun.plan(W, list(XS[:2]))) == [kernel]
    assert kernel._call.__name__ == "jitbatch_cell"
    clear_caches()
    assert kernels(plan) != [kernel]


def test_a_kernel_is_called_what_its_cell_is() -> None:
    clear_caches()
    fun = jitbatch(lambda w, x: jnp.cos(w * x) * 3.25, executor="dispatch")
    (kernel,) = kernels(fun.plan(W, list(XS)))
    assert kernel._call.__name__.isidentifier()
    assert "lambda" in kernel._call.__name__


def test_running_twice_gives_the_same_and_spoils_no_input() -> None:
    xs = jnp.asarray(XS)
    plan = cell.plan(W, xs)
    first = cell.batch(W, plan)
    second = cell.batch(W, plan)
    np.testing.assert_array_equal(first["y"], second["y"])
    np.testing.assert_array_equal(xs, XS)
    w = jnp.asarray(W)
    cell.batch(w, list(xs))
    np.testing.assert_array_equal(w, W)  # nothing that was given is donated


def test_a_shared_array_that_is_returned_is_not_donated() -> None:
    fun = jitbatch(lambda w, x: (w, x + 1.0))
    w = jnp.asarray(W)
    for _ in range(2):
        got, _ = fun.batch(w, list(XS))
        np.testing.assert_array_equal(got, np.tile(W, (5, 1)))


def test_shared_values_are_computed_once() -> None:
    calls: list[None] = []

    def fun(w: Any, x: Any) -> Any:
        return x * jax.pure_callback(lambda v: calls.append(None) or np.asarray(v), jax.typeof(w), w)

    got = jitbatch(fun).batch(W, list(XS))
    np.testing.assert_allclose(got, XS * W, rtol=1e-6)
    assert len(calls) == 1


def test_plans_run_on_leaves_alone() -> None:
    plan = cell.plan(W, list(XS))
    np.testing.assert_array_equal(execute(plan, [W])["y"], cell.batch(W, list(XS))["y"])


def test_lists_are_in_the_order_of_the_samples() -> None:
    fun = jitbatch(lambda w, xs: [jnp.sum(x) * 1.5 for x in xs], out="list")
    samples = [XS[:3], XS[3:4], XS[1:]]
    got = fun.batch(None, samples)
    assert [len(one) for one in got] == [3, 1, 4]
    for one, xs in zip(got, samples, strict=True):
        np.testing.assert_allclose(one, xs.sum(1) * 1.5, rtol=1e-6)


def test_results_of_a_transformation_do_not_leak_into_the_next_run() -> None:
    scale = jitbatch(lambda w, x: (jnp.exp(w) + 0.5) * x)  # exp(w) is a computed shared value
    w = jnp.asarray(W)
    eager = scale.batch(w, list(XS))
    jax.jit(lambda w: scale.batch(w, list(XS)))(w)
    jax.grad(lambda w: scale.batch(w, list(XS)).sum())(w)
    np.testing.assert_array_equal(scale.batch(w, list(XS)), eager)


def test_kernels_are_cleared_with_the_other_caches() -> None:
    clear_caches()
    jitbatch(lambda w, x: (w + 1.0) * x * 7.125, executor="dispatch").batch(W, list(XS))
    assert dispatch._kernels.info().currsize == 1
    assert arenas._shared_programs.info().currsize == 1
    clear_caches()
    assert dispatch._kernels.info().currsize == arenas._shared_programs.info().currsize == 0


def test_padding_is_a_row_of_its_own_step() -> None:
    """Row 0 of the arena is zero, where the root has no derivative; a padded step of roots must not read it."""

    @jitbatch
    def shifted(w: Any, x: Any) -> Any:
        return w + x

    @jitbatch
    def root(w: Any, x: Any) -> Any:
        return jnp.sqrt(w * x)

    def fun(w: Any, pair: Any) -> Any:
        return shifted(w, pair[0]) * root(w, pair[1])

    samples = [(0.0, float(i)) for i in range(1, 6)]
    w = jnp.float32(2)
    got = jax.grad(lambda w: jitbatch(fun, executor="dispatch").batch(w, samples).sum())(w)
    np.testing.assert_allclose(got, jax.grad(lambda w: sum(fun(w, sample) for sample in samples))(w), rtol=1e-5)


def test_a_traced_sample_runs_with_64_bits() -> None:
    with jax.enable_x64(True):
        fun = jitbatch(lambda w, x: jnp.sin(w * x))
        got = jax.jit(lambda w, xs: fun.batch(w, list(xs)))(jnp.float64(2), jnp.asarray(XS, jnp.float64))
        np.testing.assert_allclose(got, np.sin(2 * XS.astype(np.float64)), rtol=1e-12)
