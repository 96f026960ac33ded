"""From a call to a plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jitbatch import clear_caches, jitbatch
from jitbatch.plan.planner import Planner
from jitbatch.record import context as context_module
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.util import passes
from jitbatch.util.errors import ArgumentError, PlanError

SCALE = jnp.float32(3)
SAMPLES = [(1.0, (2.0, 3.0)), 4.0]


def make() -> Any:
    def total(scale: Any, tree: Any) -> Any:
        return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree

    return jitbatch(total)


def planned(fun: Any, *args: Any, **kwargs: Any) -> tuple[Planner, Any]:
    return fun._planner, fun._call(args, kwargs)


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


def test_plans_are_made_for_one_function() -> None:
    fun, other = make(), make()
    planner, call = planned(fun, SCALE, SAMPLES)
    plan = planner.plan(call)
    assert planner.ready(plan, call.shared) is plan
    with pytest.raises(PlanError, match="a plan is for the function that made it"):
        other._planner.ready(plan, call.shared)
    with pytest.raises(PlanError, match=r"scale was float32\[\], is float32\[2\]"):
        planner.ready(plan, SharedArguments((jnp.ones(2),)))


def test_values_of_an_outer_transformation_are_for_once() -> None:
    def gradient(by: str) -> Any:
        def loss(w: Any) -> Any:
            fun = jitbatch(lambda scale, xs: w * scale * sum(xs))
            planner, call = planned(fun, SCALE, [(1.0, 2.0), (3.0,)])
            return fun.batch(SCALE, [(1.0, 2.0), (3.0,)]).sum() if by == "batch" else getattr(planner, by)(call)

        return jax.grad(loss)(2.0)

    assert gradient("batch") == 18
    with pytest.raises(PlanError, match="pass that value as a shared argument"):
        gradient("plan")


def test_batches_without_samples() -> None:
    fun = make()
    planner, call = planned(fun, SCALE, [])
    with pytest.raises(ArgumentError, match="no earlier batch tells"):
        planner.results_of_no_samples(call)
    with pytest.raises(PlanError, match="no samples"):
        planner.plan(call)
    fun.batch(SCALE, SAMPLES)
    assert planner.results_of_no_samples(call).shape == (0,)


def test_a_batch_without_samples_after_outputs_of_two_structures() -> None:
    fun = jitbatch(lambda scale, xs: {"sum": scale * sum(xs)} if len(xs) > 1 else scale * xs[0])
    assert fun.batch(SCALE, [(1.0,), (2.0,)]).shape == (2,)
    assert fun.batch(SCALE, []).shape == (0,)
    assert fun.batch(SCALE, [(1.0, 2.0)])["sum"].shape == (1,)
    with pytest.raises(ArgumentError, match=r"was made of float32\[\], one of {sum: float32\[\]}. Leave empty batches"):
        fun.batch(SCALE, [])


def test_the_bounds_of_caches_are_told() -> None:
    fun = make()
    fun.plan(SCALE, SAMPLES)
    info = fun._planner.cache_info()
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
