"""What the caller of a plan asks for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.plan.request import PlanRequest
from jitbatch.plan.rooms import Rooms
from jitbatch.util.errors import ArgumentError


def plan(executor: str) -> Any:
    return jitbatch(lambda scale, xs: scale * sum(xs), executor=executor).plan(jnp.float32(2), [(1.0, 2.0)])


def test_sizes_shards_rooms_and_differentiable_inputs_ask_for_a_program() -> None:
    assert not PlanRequest().asks_for_a_program
    assert not PlanRequest("auto", is_eager=True).asks_for_a_program
    assert not PlanRequest(plan("per_sample")).asks_for_a_program
    sized = plan("fused")
    for request in (
        PlanRequest(sized), PlanRequest(sized.capacity), PlanRequest(shards=1), PlanRequest(rooms=Rooms()),
        PlanRequest(differentiable=("xs",)),
    ):  # fmt: skip
        assert request.asks_for_a_program


def test_what_cannot_be_asked_for() -> None:
    for executor in ("auto", "fused", "dispatch"):
        PlanRequest(differentiable=("xs",)).check(executor)
    with pytest.raises(ArgumentError, match="the per-sample executor has no differentiable inputs"):
        PlanRequest(differentiable=("xs",)).check("per_sample")
    with pytest.raises(ArgumentError, match="like='larger' is not a plan"):
        PlanRequest("larger").check("auto")
