"""Samples as arguments of a jitted function: a warning, once, that it is compiled for each structure of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch as library
from jitbatch import RecompileWarning, jitbatch

TREES = [[(1.0, (2.0, 3.0)), 4.0], [(1.0, 2.0), (3.0, 4.0)], [1.0, 2.0]]


def make() -> Any:
    @jitbatch
    def total(w: Any, tree: Any) -> Any:
        return sum(total(w, part) for part in tree) if isinstance(tree, tuple) else w * tree

    return total


def warned(calls: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls()
    return [
        one for one in caught if issubclass(one.category, RecompileWarning) and "inside jax.jit" in str(one.message)
    ]


@pytest.mark.parametrize("differentiate", [False, True])
def test_trees_as_arguments_of_a_jitted_function_are_warned_of_once(differentiate: bool) -> None:
    total = make()

    @jax.jit
    def step(w: Any, trees: Any) -> Any:
        loss = lambda w: total.batch(w, trees).sum()  # noqa: E731
        return jax.grad(loss)(w) if differentiate else loss(w)

    assert warned(lambda: step(2.0, TREES[0])) == []
    (warning,) = warned(lambda: [step(2.0, trees) for trees in TREES])
    message = str(warning.message)
    assert "`make.<locals>.total`" in message
    assert "arguments of the jitted function" in message
    assert "Use `jitbatch.jit` in place of `jax.jit`" in message
    assert "`plan = f.plan(params, samples)` outside" in message
    assert warning.filename == __file__
    assert warned(lambda: step(2.0, [*TREES[0], *TREES[1]])) == []
    np.testing.assert_allclose(step(2.0, TREES[0]), 10.0 if differentiate else 20.0)


def test_what_is_compiled_once_is_not_warned_of() -> None:
    total, other = make(), make()
    step = jax.jit(lambda w, trees: total.batch(w, trees))
    of_array = jax.jit(lambda w, xs: other.batch(w, xs))
    closed = [jax.jit(lambda w, trees=trees: make().batch(w, trees)) for trees in TREES]

    def calls() -> None:
        for w in (1.0, jnp.float32(2), jnp.ones(3)):  # compiled anew, but not for the samples
            step(w, TREES[0])
        for count in (2, 3):
            of_array(1.0, jnp.ones(count))
        for one in closed:
            one(1.0)
        for trees in TREES:
            total.batch(1.0, trees)
            jax.grad(lambda w, trees=trees: total.batch(w, trees).sum())(1.0)
            jax.grad(lambda trees: total.batch(1.0, trees).sum())(trees)

    assert warned(calls) == []


def test_the_advice_helps() -> None:
    total = make()
    step = library.jit(lambda w, trees: total.batch(w, trees).sum())
    assert warned(lambda: [step(2.0, trees) for trees in TREES]) == []
