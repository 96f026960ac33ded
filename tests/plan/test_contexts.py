"""The contexts of a function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jitbatch import clear_caches, jitbatch
from jitbatch.record import context as context_module
from jitbatch.util import passes

SCALE = jnp.float32(3)
SAMPLES = [(1.0, (2.0, 3.0)), 4.0]


def make() -> Any:
    def total(scale: Any, tree: Any) -> Any:
        return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree

    return jitbatch(total)


def test_a_context_for_each_kind_of_shared_arguments() -> None:
    fun = make()
    for scale in (SCALE, 2 * SCALE, jnp.ones(2)):
        fun.plan(scale, SAMPLES)
    assert len(list(fun._planner.contexts)) == 2


def test_a_full_context_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fun = make()
    fun.plan(SCALE, SAMPLES)
    (before,) = fun._planner.contexts
    monkeypatch.setattr(type(before), "is_full", property(lambda self: self is before))
    fun.plan(SCALE, SAMPLES)
    (after,) = fun._planner.contexts
    assert after is not before


def test_the_bounds_of_caches_are_told() -> None:
    fun = make()
    fun.plan(SCALE, SAMPLES)
    info = fun._planner.contexts.cache_info()
    assert info["structures"].maxsize == context_module.MAX_STRUCTURES
    assert info["structures"].currsize == 2


def test_a_call_like_the_last_one_has_its_context() -> None:
    """Unless a setting of JAX, the recorder's passes, the parameters or the layout of arguments differ."""
    f, params = jitbatch(lambda w, sample: w["a"] * sample[0]), {"a": jnp.ones(2)}
    samples = [(1.0,), (2.0,)]

    def context(*args: Any, **kwargs: Any) -> Any:
        return f._planner.context_of(f._call(args, kwargs))

    first = context(params, samples)
    assert context({"a": jnp.zeros(2)}, samples) is first
    with jax.enable_x64(True):
        assert context(params, samples) is not first
    assert context(params, samples) is first
    with passes.without("sums"):
        assert context(params, samples) is not first
    assert context({"a": jnp.zeros(3)}, samples) is not first
    assert context({"a": jnp.zeros(2, jnp.int32)}, samples) is not first
    assert context({"b": jnp.zeros(2)}, samples) is not first
    assert context(params, samples) is first
    clear_caches()
    assert context(params, samples) is not first


def test_names_and_orders_of_arguments_decide() -> None:
    """Known samples come again by another name, and parameters with their keys in another order."""
    signed = jitbatch(lambda w, **given: w * (given.get("plus", 0.0) - given.get("minus", 0.0)))
    first_key = jitbatch(lambda w, x: next(iter(w.values())) * x)
    three, five, samples = jnp.float32(3), jnp.float32(5), [1.0, 2.0]
    for _ in range(2):
        assert signed.batch(three, plus=samples).tolist() == [3.0, 6.0]
        assert signed.batch(three, minus=samples).tolist() == [-3.0, -6.0]
        assert first_key.batch({"a": three, "b": five}, samples).tolist() == [3.0, 6.0]
        assert first_key.batch({"b": five, "a": three}, samples).tolist() == [5.0, 10.0]
