"""A loop with a rule for reverse mode, in all modes and under other transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jitbatch.execute.fused.derivative import with_rule
from jitbatch.util.errors import PlanError

ROOM = 8
W, X, TURNS = jnp.float32(1.3), jnp.arange(3.0) + 0.5, jnp.int32(5)


def run(room: int, w: Any, start: Any) -> Any:
    """The state after some turns, whose number is data; and an integer that has no derivative."""
    x, turns = start
    return lax.fori_loop(0, turns, lambda _, h: jnp.sin(h * w), x), turns + 1


def run_saving(room: int, w: Any, start: Any) -> Any:
    x, turns = start

    def turn(i: Any, carry: Any) -> Any:
        h, states = carry
        return jnp.sin(h * w), states.at[i].set(h)

    h, states = lax.fori_loop(0, turns, turn, (x, jnp.zeros((room, *x.shape))))
    return (h, turns + 1), states


def again(results: Any, args: Any) -> Any:
    return args


def backward(room: int, args: Any, states: Any, d_results: Any) -> Any:
    w, (_, turns) = args
    d_h, none = d_results
    assert none is None

    def turn(i: Any, carry: Any) -> Any:
        d_h, d_w = carry
        h = states[turns - 1 - i]
        inner = jnp.cos(h * w) * d_h
        return inner * w, d_w + (inner * h).sum()

    d_x, d_w = lax.fori_loop(0, turns, turn, (d_h, jnp.zeros_like(w)))
    return d_w, (d_x, None)


looped = with_rule(run, run_saving, again, backward)


def by_rule(w: Any, x: Any, turns: Any = TURNS) -> Any:
    h, count = jax.jit(looped, static_argnums=0)(ROOM, w, (x, turns))
    return (h**2).sum() * count


def unrolled(w: Any, x: Any) -> Any:
    for _ in range(5):
        x = jnp.sin(x * w)
    return (x**2).sum() * 6


WS, XS = W * jnp.arange(3.0), jnp.stack([X, X - 1, 2 * X])
MODES: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f(W, X),
    "grad": lambda f: jax.grad(f, (0, 1))(W, X),
    "grad of one": lambda f: jax.grad(f)(W, X),
    "jit of grad": lambda f: jax.jit(jax.grad(f, (0, 1)))(W, X),
    "grad of jit": lambda f: jax.grad(jax.jit(f), (0, 1))(W, X),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f), (0, 1))(W, X),
    "vjp": lambda f: jax.vjp(f, W, X)[1](jnp.float32(2)),
    "jvp": lambda f: jax.jvp(f, (W, X), (W, X)),
    "jvp of jit": lambda f: jax.jvp(jax.jit(f), (W, X), (W, X)),
    "jvp of checkpoint": lambda f: jax.jvp(jax.checkpoint(f), (W, X), (W, X)),
    "linearize": lambda f: jax.linearize(jax.jit(f), W, X)[1](W, X),
    "jacfwd of jit": lambda f: jax.jacfwd(jax.jit(f), (0, 1))(W, X),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f))(W, X),
    "hessian": lambda f: jax.hessian(f, (0, 1))(W, X),
    "hessian of jit": lambda f: jax.hessian(jax.jit(f), (0, 1))(W, X),
    "grad of grad": lambda f: jax.grad(lambda w, x: jnp.sin(jax.grad(f, 1)(w, x)).sum() + f(w, x), (0, 1))(W, X),
    "grad of grad of jit": lambda f: jax.jit(jax.grad(lambda w, x: jax.grad(jax.jit(f))(w, x) ** 2, (0, 1)))(W, X),
    "grad of jvp": lambda f: jax.grad(lambda w, x: jax.jvp(f, (w, x), (x[0], x * w))[1], (0, 1))(W, X),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1))(W, X),
    "jvp of grad of grad": lambda f: jax.jvp(jax.grad(lambda w: jax.grad(f)(w, X) ** 2), (W,), (W,)),
    "vmap of grad of grad": lambda f: jax.vmap(jax.grad(lambda w, x: jax.grad(f, 1)(w, x).sum()), (0, None))(WS, X),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None))(WS, X),
    "grad of vmap, one mapped": lambda f: jax.grad(lambda w, x: jax.vmap(f, (0, None))(w, x).sum(), (0, 1))(WS, X),
    "grad of vmap, the other": lambda f: jax.grad(lambda w, x: jax.vmap(f, (None, 0))(w, x).sum(), (0, 1))(W, XS),
    "grad of vmap": lambda f: jax.grad(lambda w, x: jax.vmap(f)(w, x).sum(), (0, 1))(WS, XS),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f, (0, None)), (WS, X), (WS, X)),
}


@pytest.mark.parametrize("mode", MODES)
def test_derivatives(mode: str) -> None:
    got, want = MODES[mode](by_rule), MODES[mode](unrolled)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_reverse_mode_is_the_rule() -> None:
    wrong = with_rule(run, run_saving, again, lambda *args: jax.tree.map(lambda d: 2 * d, backward(*args)))
    gradients = [jax.grad(lambda w, f=f: f(ROOM, w, (X, TURNS))[0].sum())(W) for f in (looped, wrong)]
    np.testing.assert_allclose(2 * gradients[0], gradients[1])


def test_third_derivatives_in_reverse_mode_are_refused() -> None:
    with pytest.raises(PlanError, match='use executor="dispatch"'):
        jax.grad(lambda w: jax.grad(jax.grad(by_rule))(w, X))(W)


def test_results_that_are_not_mapped_stay_so() -> None:
    """Beside what depends on a mapped argument there are results that do not; JAX wants tangents like values."""

    def pair(room: int, w: Any, x: Any) -> Any:
        return w * 2, x * 3

    two = with_rule(
        pair,
        lambda room, w, x: (pair(room, w, x), ()),
        again,
        lambda room, args, _, d: (2 * d[0], 3 * d[1]),
    )
    mapped = jax.vmap(lambda w, x: two(0, w, x), in_axes=(0, None), out_axes=(0, None))
    got = jax.jvp(jax.jit(mapped), (WS, X), (jnp.ones_like(WS), X))
    want = (2 * WS, 3 * X), (2 * jnp.ones_like(WS), 3 * X)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other)
    d_w, d_x = jax.grad(lambda w, x: sum(map(jnp.sum, mapped(w, x))), (0, 1))(WS, X)
    np.testing.assert_allclose(d_w, 2 * jnp.ones_like(WS))
    np.testing.assert_allclose(d_x, 3 * jnp.ones_like(X))
