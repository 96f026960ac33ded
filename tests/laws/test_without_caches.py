"""The recorder needs none of its caches: without them batching equals the plain loop, values and gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conformance import check, drawn
from zoo import WORKLOADS, Workload, gradients

from jitbatch import jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.util import passes

OFTEN = 12
"""Of so many workloads one runs unless slow tests are asked for."""


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(workload, id=workload.name, marks=() if position % OFTEN == 0 else pytest.mark.slow)
        for position, workload in enumerate(WORKLOADS)
    ],
)
def test_values_and_gradients(workload: Workload) -> None:
    with passes.without_caches():
        batched = jitbatch(workload.fun, granularity="subgraph")
        check(workload, *gradients(batched.batch, *drawn(workload), workload.float_inputs, transform=jax.jit))
        for context in batched._planner.contexts:
            known = context.known
            assert [*known.templates, *known.cell_bodies, *known.functions, *context.graphs, *context.structures] == []


@jitbatch
def cell(w: Any, x: Any, y: Any) -> Any:
    RUNS.append("cell")
    return jnp.tanh(w["w"] * x + y)


@jitbatch
def fold(w: Any, xs: Any) -> Any:
    RUNS.append("fold")
    state = xs[0]
    for x in xs[1:]:
        state = cell(w, state, x)
    return state


RUNS: list[str] = []
W, SAMPLES = {"w": np.float32(0.5)}, [[np.float32(i + k) for i in range(3)] for k in range(2)]


@pytest.mark.parametrize("with_caches", [True, False])
def test_bodies_run_for_every_call_without_caches(with_caches: bool) -> None:
    batched = jitbatch(lambda w, xs: fold(w, xs) + fold(w, xs[:2]))
    RUNS.clear()
    if with_caches:
        plan = batched.plan(W, SAMPLES)
        assert RUNS == ["fold", "cell", "fold"]
    else:
        with passes.without_caches():
            plan = batched.plan(W, SAMPLES)
            assert RUNS == ["fold", "cell", "cell", "fold", "cell"]
            batched.plan(W, SAMPLES)
            assert len(RUNS) == 10
    assert (plan.summary.nodes, plan.summary.types) == (8, 2)


def graphs_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graphs of some samples, as text."""
    batched = jitbatch(lambda w, xs: fold(w, xs) + fold(w, xs[:2]) * cell(w, xs[0], xs[0]))
    graphs: list[Any] = []
    verify = Graph.verify
    monkeypatch.setattr(Graph, "verify", lambda graph: (graphs.append(graph), verify(graph)))
    batched.plan(W, [*SAMPLES, SAMPLES[0] + SAMPLES[1]])
    monkeypatch.undo()
    return [str(graph) for graph in graphs]


def test_graphs_are_the_same_with_and_without_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    want = graphs_of(monkeypatch)
    with passes.without_caches():
        assert graphs_of(monkeypatch) == want
    assert len(want) == 2
