"""A plan's inputs are constants: differentiating them is an error, differentiating parameters beside them is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from zoo import assert_same, stack

from jitbatch import jitbatch
from jitbatch.util.errors import PlanError

W = jnp.array([0.5, -1.5])
ROWS = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
SAMPLES = [ROWS[:3], ROWS[3:4], ROWS[4:]]


@jitbatch
def cell(w: Array, h: Array, x: Array) -> Array:
    return jnp.tanh(w * h + x)


def chain(w: Array, xs: Array) -> Array:
    h = w
    for x in xs:
        h = cell(w, h, x)
    return h.sum()


EXECUTORS = {name: jitbatch(chain, executor=name) for name in ("fused", "dispatch")}


def loop(w: Array) -> Array:
    return stack([chain(w, xs) for xs in SAMPLES]).sum()


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda loss: lambda w, plan: jax.grad(lambda plan: loss(w, plan), allow_int=True)(plan),
    "grad of jit": lambda loss: lambda w, plan: jax.grad(jax.jit(loss), argnums=1, allow_int=True)(w, plan),
    "grad of both": lambda loss: jax.grad(loss, argnums=(0, 1), allow_int=True),
    "jit of grad": lambda loss: jax.jit(jax.grad(loss, argnums=1, allow_int=True)),
    "grad of checkpoint": lambda loss: jax.grad(jax.checkpoint(loss), argnums=1, allow_int=True),
    "vjp": lambda loss: lambda w, plan: jax.vjp(loss, w, plan),
    "linearize": lambda loss: lambda w, plan: jax.linearize(loss, w, plan),
    "jvp": lambda loss: (
        lambda w, plan: jax.jvp(
            lambda inputs: loss(w, dataclasses.replace(plan, rows=inputs)),
            (plan.rows,),
            (plan.rows,),
        )
    ),
}


@pytest.mark.parametrize("executor", ["fused", pytest.param("dispatch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_inputs_of_a_plan_are_not_differentiated(name: str, executor: str) -> None:
    batched = EXECUTORS[executor]
    plan = batched.plan(W, SAMPLES)
    with pytest.raises(PlanError, match=r"a plan's inputs are constants.*call \.batch on the samples themselves"):
        DERIVATIVES[name](lambda w, plan: batched.batch(w, plan).sum())(W, plan)


PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "jit of grad": lambda loss: jax.jit(jax.grad(loss)),
    "grad of jit": lambda loss: jax.grad(jax.jit(loss)),
    "grad of checkpoint of jit": lambda loss: jax.grad(jax.checkpoint(jax.jit(loss))),
    "hessian of jit": lambda loss: jax.hessian(jax.jit(loss)),
    "jit of hessian": lambda loss: jax.jit(jax.hessian(loss)),
    "product with the hessian": lambda loss: (
        lambda w, plan: jax.jvp(lambda w: jax.grad(jax.jit(loss))(w, plan), (w,), (w,))
    ),
    "vmap over parameters": lambda loss: lambda w, plan: jax.vmap(jax.grad(loss), (0, None))(stack([w, 2 * w]), plan),
    "vmap of the plan": lambda loss: (
        lambda w, plan: jax.vmap(jax.grad(loss), (None, 0))(
            w, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), plan)
        )[:, 0]
    ),
}


@pytest.mark.parametrize("executor", ["fused", pytest.param("dispatch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_beside_a_plan_are_differentiated(name: str, executor: str) -> None:
    batched = EXECUTORS[executor]
    plan = batched.plan(W, SAMPLES)
    got = PARAMETERS[name](lambda w, plan: batched.batch(w, plan).sum())(W, plan)
    want = PARAMETERS[name](lambda w, plan: loop(w))(W, plan)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_samples_themselves_are_differentiated() -> None:
    batched = EXECUTORS["fused"]
    got = jax.grad(lambda samples: batched.batch(W, samples).sum())(SAMPLES)
    want = jax.grad(lambda samples: stack([chain(W, xs) for xs in samples]).sum())(SAMPLES)
    assert_same(got, want, rtol=1e-4, atol=1e-5)
