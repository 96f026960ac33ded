"""The arguments of a batch, and its samples as graphs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.plan.recorded import Call, Recorded
from jitbatch.util.errors import ArgumentError

FUN = jitbatch(lambda scale, xs: scale * sum(xs))
SAMPLES = [(1.0,), (2.0, 3.0), (4.0, 5.0, 6.0)]


def call(samples: Any) -> Call:
    return FUN._call((jnp.float32(2), samples), {})


def test_a_call_with_other_samples() -> None:
    before = call([(7.0,)])
    after = before.with_mapped([SAMPLES])
    assert after.samples == [(sample,) for sample in SAMPLES]
    assert before.samples == [((7.0,),)]
    assert after.shared is before.shared


def test_calls_without_samples() -> None:
    assert call([]).is_empty
    assert call(()).is_empty
    assert not call(SAMPLES).is_empty
    with pytest.raises(ArgumentError):
        assert call(3.0).is_empty


def test_some_of_the_samples() -> None:
    """As often as one likes: known samples are taken apart for it."""
    for _ in range(3):
        batch = Recorded(call(SAMPLES), FUN._planner.context_of(call(SAMPLES)))
        batch.record()
        part = batch.some([2, 0])
        assert part.graphs == [batch.graphs[2], batch.graphs[0]]
        assert part.nodes == sum(len(graph.kind) for graph in part.graphs) < batch.nodes
        assert [len(structure.leaves) for structure in part.structures] == [3, 1]
        assert len(part.inputs) == len(part) == 2
