"""Building a graph: what is an input row, what is shared, what is work, and what is left out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import ROW, SharedArray, SharedLeaf, SharedResult
from jitbatch.record.rows import SMALL
from jitbatch.util.errors import OutputError, PlanError

X = np.float32([1.0, 2.0])
XS = np.arange(12, dtype=np.float32).reshape(3, 2, 2)


@pytest.fixture(autouse=True)
def no_cells() -> None:
    """A cell is named by the first function that had it, here or in another test."""
    clear_caches()


def graph_of(fun: Any, shared: Any, sample: Any, **options: Any) -> Graph:
    batched = jitbatch(fun, **options)
    batched.plan(shared, [sample])
    (context,) = batched._planner.contexts
    (graph,) = context.graphs
    return graph


def cells(graph: Graph) -> list[str]:
    return [graph.tables.kinds[kind].cell.name.split(".")[-1] for kind in graph.kind]


@jitbatch
def cell(w: Any, x: Any) -> Any:
    return w * x


def test_rows_of_inputs_are_references() -> None:
    graph = graph_of(lambda _, xs: (xs[1], xs[-1, 1], xs[1:][0][1], xs), None, XS)
    assert graph.node_count == 0
    assert graph.inputs.tolist() == [[0, 1, 1], [0, 2, 5], [0, 2, 3], [0, 0, 0]]


def test_a_row_that_is_read_twice_is_one_input() -> None:
    graph = graph_of(lambda _, xs: (xs[1], xs[1:][0], xs[-2]), None, XS)
    assert graph.inputs.tolist() == [[0, 1, 1]]
    assert graph.outputs.tolist() == [0, 0, 0]


def test_a_slice_is_work_only_when_it_is_needed_as_an_array() -> None:
    assert graph_of(lambda w, xs: [cell(w, x) for x in xs[1:]], X, XS[:, 0]).node_count == 2
    graph = graph_of(lambda w, xs: jnp.sum(xs[1:]), X, XS)
    assert graph.inputs.tolist() == [[0, 0, 0]]
    assert graph.node_count == 1


def test_what_no_result_needs_is_left_out() -> None:
    def fun(w: Any, xs: Any) -> Any:
        cell(w, xs[0])
        jnp.sin(xs[1])
        return cell(w, xs[2])

    graph = graph_of(fun, X, XS[0:3, 0])
    assert cells(graph) == ["cell"]
    assert graph.inputs.tolist() == [[0, 1, 2]]


def test_effects_are_kept() -> None:
    seen: list[Any] = []

    def fun(_: Any, x: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(float(value)), x)
        return 1.0

    batched = jitbatch(fun)
    assert batched.batch(None, [1.0, 2.0, 2.0]).tolist() == [1.0, 1.0, 1.0]
    jax.effects_barrier()
    assert sorted(seen) == [1.0, 2.0, 2.0]


def test_what_depends_on_shared_arguments_alone_is_computed_once() -> None:
    graph = graph_of(lambda w, x: cell(jnp.exp(w), x) + jnp.sin(w), X, X)
    shared = graph.tables.shared.entries
    assert sum(isinstance(entry, SharedResult) for entry in shared) == 2
    assert sum(isinstance(entry, SharedLeaf) for entry in shared) == 1
    assert graph.node_count == 2
    only = graph_of(lambda w, x: cell(w, w), X, X)
    assert only.node_count == 0
    assert len(only.shared_rows) == 1


def test_subgraphs_of_shared_values_are_shared_values() -> None:
    graph = graph_of(lambda w, x: cell(cell(w, w), x), X, X)
    assert cells(graph) == ["cell"]


def test_small_constants_that_are_passed_are_rows() -> None:
    graph = graph_of(lambda w, x: cell(w, np.float32([3, 4])) + cell(x, np.float32([5, 6])) + cell(x, w), X, X)
    for kind in graph.kind[:2]:
        assert ROW in graph.tables.kinds[kind].binding
    constants = [entry for entry in graph.tables.shared.entries if isinstance(entry, SharedArray)]
    assert len(constants) == 2


def test_calls_on_different_constants_are_one_bucket() -> None:
    def fun(w: Any, sample: Any) -> Any:
        return cell(sample[1], np.full(2, sample[0].value, np.float32))

    batched = jitbatch(fun)
    samples = [(Static(i), X) for i in range(3)]
    assert batched.plan(X, samples).summary.types == 1
    np.testing.assert_allclose(batched.batch(X, samples), [i * X for i in range(3)])


def test_large_constants_are_part_of_what_is_computed() -> None:
    large = np.ones(SMALL + 1, np.float32)
    graph = graph_of(lambda w, x: cell(x, large), X, X[0])
    (kind,) = (graph.tables.kinds[kind] for kind in graph.kind)
    assert kind.binding.count(ROW) == 1


def test_what_a_subgraph_closes_over_is_no_row() -> None:
    constant = np.float32([3, 4])

    @jitbatch
    def closing(x: Any) -> Any:
        return x * constant

    graph = graph_of(lambda w, x: closing(x), None, X)
    (kind,) = (graph.tables.kinds[kind] for kind in graph.kind)
    assert kind.binding.count(ROW) == 1
    assert len(kind.binding) == 2


def test_granularities() -> None:
    @jax.jit
    def users(x: Any) -> Any:
        return jnp.sin(x) + 1.0

    def fun(w: Any, x: Any) -> Any:
        return users(cell(w, x) * 2.0) - 1.0

    counts = {g: graph_of(fun, X, X, granularity=g).node_count for g in ("op", "subgraph", "graph", "auto")}
    assert counts == {"op": 5, "subgraph": 4, "graph": 1, "auto": 4}
    assert cells(graph_of(fun, X, X))[2] == "users"


def test_a_graph_without_work() -> None:
    for granularity in ("op", "subgraph", "graph"):
        graph = graph_of(lambda w, x: {"w": w, "x": x, "one": 1}, X, X, granularity=granularity)
        assert graph.node_count == 0
        assert len(graph.outputs) == 3


def test_results_are_arrays() -> None:
    with pytest.raises(OutputError, match=r"returned 'text' of type str at result\[1\]\['a'\] for sample 0"):
        graph_of(lambda w, x: (x, {"a": "text"}), X, X)


def test_tracers_of_outer_transformations_are_not_planned() -> None:
    def loss(w: Any) -> Any:
        graph_of(lambda _, x: w * x, None, X)
        return w

    with pytest.raises(PlanError, match=r"closes over.*pass that value as a shared argument"):
        jax.grad(loss)(1.0)
