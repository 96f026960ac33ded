"""Transformations of a decorated function: its methods are its own, and what is made of it says so."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jitbatch import JitbatchError, jitbatch
from jitbatch.methods.batched import METHODS


@pytest.mark.parametrize("transform", [nnx.jit, jax.jit, jax.vmap, jax.grad], ids=lambda one: one.__name__)
def test_methods_of_a_transformed_function_say_in_which_order_to_decorate(transform: Any) -> None:
    function = jitbatch(lambda w, x: w * x)
    above = transform(function)
    for name in METHODS:
        with pytest.raises(
            JitbatchError, match=rf"`\.{name}` is asked of what another transformation \(nnx.jit, jax.jit"
        ):
            getattr(above, name)(2.0, [1.0])
    with pytest.raises(
        JitbatchError, match=r"test_wrapped.py:\d+\), after it was .*`jitbatch.jit\(step, jit=nnx.jit\)"
    ):
        above.batch(2.0, [1.0])
    assert function.batch(2.0, [1.0, 3.0]).tolist() == [2.0, 6.0]


def test_a_transformed_function_still_takes_one_sample() -> None:
    function = jitbatch(lambda w, x: w * x)
    assert nnx.jit(function)(2.0, 3.0) == jax.jit(function)(2.0, 3.0) == 6.0
    assert jax.vmap(function, (None, 0))(2.0, jnp.arange(2.0)).tolist() == [0.0, 2.0]
    assert jax.grad(function)(2.0, 3.0) == 3.0


def test_a_function_that_is_decorated_compiled_and_decorated_again_has_plans_of_its_own() -> None:
    inner = jitbatch(lambda w, x: w * x, out="list")
    outer = jitbatch(jax.jit(inner))
    assert outer.batch(2.0, [1.0, 3.0]).tolist() == [2.0, 6.0]
    assert outer.plan(2.0, [1.0]).static.owner is outer
