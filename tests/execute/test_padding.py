"""Rows of padding have no part in derivatives: where the plain loop's gradient is infinite, so is the batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jitbatch import jitbatch

PARAMS = {"start": jnp.zeros(3), "matrix": jnp.zeros((3, 3)), "zeros": jnp.zeros(3), "ones": jnp.ones(3)}


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.1, 1, (length, 3)).astype(np.float32) for length in (1, 3, 2, 5, 3)]


_jitted = jax.jit(lambda x, weights: jnp.sqrt(x * weights))

CELLS: dict[str, Callable[..., Array]] = {
    "root of a product": lambda p, h, x: jnp.sqrt(x * p["zeros"]) + h / 2,
    "root of a matrix product": lambda p, h, x: jnp.sqrt(x @ p["matrix"]) + h,
    "root of a row": lambda p, h, x: jnp.sqrt(h * p["ones"]) + x * 0,
    "root of a sum": lambda p, h, x: jnp.cbrt(x * p["zeros"] + h),
    "division by a parameter": lambda p, h, x: x / p["zeros"] + h,
    "power of a parameter": lambda p, h, x: jnp.power(p["zeros"], x / 2) + h,
    "in a jit": lambda p, h, x: _jitted(x, p["zeros"]) + h,
}


def chain(cell: Any) -> Any:
    """The cell runs in a loop."""

    def fun(params: Any, xs: Any) -> Array:
        h = params["start"]
        for x in xs:
            h = cell(params, h, x)
        return h.sum()

    return fun


def once(cell: Any) -> Any:
    """The cell runs in a phase that is not a loop."""
    return lambda params, xs: cell(params, params["start"], xs[-1]).sum()


OPTIONS: list[dict[str, Any]] = [
    {"executor": "dispatch"},
    {"executor": "dispatch", "granularity": "op"},
    {"executor": "fused"},
    {"executor": "fused", "loops": "static"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("program", [chain, once])
@pytest.mark.parametrize("name", CELLS)
def test_infinite_gradients(name: str, program: Any, options: dict[str, Any]) -> None:
    fun, xs = program(jitbatch(CELLS[name])), samples()
    batched = jitbatch(fun, **options)
    plan = batched.plan(PARAMS, xs)
    assert plan.summary.padded_rows > plan.summary.rows
    want = jax.grad(lambda params: sum(fun(params, x) for x in xs))(PARAMS)
    assert any(np.isinf(leaf).any() for leaf in want.values())
    got = jax.jit(jax.grad(lambda params, plan: batched.batch(params, plan).sum()))(PARAMS, plan)
    for key in PARAMS:
        if not np.isnan(want[key]).any():
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4)
