"""Plans belong to the function that made them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.plan.request import PlanRequest
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.util.errors import PlanError

SCALE = jnp.float32(3)
SAMPLES = [(1.0, (2.0, 3.0)), 4.0]


def make() -> Any:
    def total(scale: Any, tree: Any) -> Any:
        return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree

    return jitbatch(total)


def test_plans_are_made_for_one_function() -> None:
    fun, other = make(), make()
    planner, call = fun._planner, fun._call((SCALE, SAMPLES), {})
    plan = planner.plan(call, PlanRequest())
    assert planner.ready(plan, call.shared) is plan
    with pytest.raises(PlanError, match="a plan is for the function that made it"):
        other._planner.ready(plan, call.shared)
    with pytest.raises(PlanError, match=r"scale was float32\[\], is float32\[2\]"):
        planner.ready(plan, SharedArguments((jnp.ones(2),)))
