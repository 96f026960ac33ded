"""Floating point operations of jaxprs, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from jitbatch.tune.flops import flops_of

X, W = jnp.ones(4), jnp.ones((4, 5))


@jax.custom_jvp
def with_derivative(x: Array) -> Array:
    return jnp.sin(x)


@with_derivative.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return with_derivative(*primals), jnp.cos(jnp.cos(primals[0])) * tangents[0]


def turns(x: Array) -> Array:
    return lax.scan(lambda h, _: (jnp.sin(h), None), x, length=7)[0]


def either(x: Array) -> Array:
    return lax.cond(x[0] > 0, jnp.sin, lambda y: jnp.sin(y) * y, x)


def until(x: Array) -> Array:
    return lax.while_loop(lambda y: y[0] < 9, lambda y: y + y, x)


COUNTED: dict[str, tuple[Callable[..., Any], tuple[Array, ...], int]] = {
    "elements": (lambda x: jnp.sin(x) + x, (X,), 4 + 4),
    "a product": (lambda x, w: x @ w, (X, W), 2 * 4 * 5),
    "a product of matrices": (lambda v, w: v @ w, (W.T, W), 2 * 5 * 4 * 5),
    "a reduction reads all it is given": (lambda w: w.sum(0), (W,), 20),
    "moves compute nothing": (lambda w: w.T.reshape(2, 10)[:, ::-1], (W,), 0),
    "a function with a derivative of its own": (with_derivative, (X,), 4),
    "a function inside": (jax.jit(jnp.sin), (X,), 4),
    "a scan, each turn": (turns, (X,), 7 * 4),
    "a branch, the costliest; and the comparison": (either, (X,), 8 + 1),
    "a convolution": (
        lambda image, kernel: lax.conv(image, kernel, (1, 1), "VALID"),
        (jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 3, 3))),
        2 * (3 * 3 * 3) * (2 * 3 * 3),
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counted_by_hand(name: str) -> None:
    fun, arguments, wanted = COUNTED[name]
    assert flops_of(jax.make_jaxpr(fun)(*arguments)) == wanted


def test_a_while_loop_counts_as_one_turn() -> None:
    assert flops_of(jax.make_jaxpr(until)(X)) == 4 + 1
