"""Batches without samples."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.plan.request import PlanRequest
from jitbatch.util.errors import ArgumentError, PlanError

SCALE = jnp.float32(3)
SAMPLES = [(1.0, (2.0, 3.0)), 4.0]


def make() -> Any:
    def total(scale: Any, tree: Any) -> Any:
        return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree

    return jitbatch(total)


def test_batches_without_samples() -> None:
    fun = make()
    planner, call = fun._planner, fun._call((SCALE, []), {})
    with pytest.raises(ArgumentError, match="no earlier batch tells"):
        planner.results_of_no_samples(call)
    with pytest.raises(PlanError, match="no samples"):
        planner.plan(call, PlanRequest())
    fun.batch(SCALE, SAMPLES)
    assert planner.results_of_no_samples(call).shape == (0,)


def test_a_batch_without_samples_after_outputs_of_two_structures() -> None:
    fun = jitbatch(lambda scale, xs: {"sum": scale * sum(xs)} if len(xs) > 1 else scale * xs[0])
    assert fun.batch(SCALE, [(1.0,), (2.0,)]).shape == (2,)
    assert fun.batch(SCALE, []).shape == (0,)
    assert fun.batch(SCALE, [(1.0, 2.0)])["sum"].shape == (1,)
    with pytest.raises(ArgumentError, match=r"was made of float32\[\], one of {sum: float32\[\]}. Leave empty batches"):
        fun.batch(SCALE, [])
