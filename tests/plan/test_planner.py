"""From a call to a plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.plan.plan import Plan
from jitbatch.plan.request import PlanRequest
from jitbatch.util.errors import PlanError

SCALE = jnp.float32(3)


def test_values_of_an_outer_transformation_are_for_once() -> None:
    samples = [(1.0, 2.0), (3.0,)]

    def gradient(use: Any) -> Any:
        return jax.grad(lambda w: use(jitbatch(lambda scale, xs: w * scale * sum(xs))))(2.0)

    assert gradient(lambda fun: fun.batch(SCALE, samples).sum()) == 18
    with pytest.raises(PlanError, match="pass that value as a shared argument"):
        gradient(lambda fun: fun._planner.plan(fun._call((SCALE, samples), {}), PlanRequest()))


def test_a_room_is_chosen_by_what_is_asked_for() -> None:
    """Plans for one number of samples share the sizes, unless the caller takes those of the batch."""
    fun = jitbatch(lambda scale, xs: scale * sum(xs), executor="fused")
    planner = fun._planner

    def plan(length: int, request: PlanRequest) -> Plan:
        return planner.plan(fun._call((SCALE, [(1.0,) * length, (2.0,)]), {}), request)

    first = plan(8, PlanRequest("auto"))
    assert plan(3, PlanRequest("auto")).static is first.static
    assert plan(3, PlanRequest(first)).static is first.static
    assert plan(3, PlanRequest()).static is not first.static
