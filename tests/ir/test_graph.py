"""The graph of a sample: what its arrays say, and a verifier that notices when they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import clear_caches, jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import SharedResult
from jitbatch.util.errors import VerifyError


@jitbatch
def scaled(w: Any, x: Any) -> Any:
    return w * x


@jitbatch
def joined(w: Any, x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y]) @ w["join"]


@jitbatch
def tree(w: Any, node: Any) -> Any:
    if isinstance(node, tuple):
        return joined(w, *(tree(w, child) for child in node))
    return scaled(w["scale"], node)


def graph_of(fun: Any, *args: Any) -> Graph:
    """The graph of a batch of one sample."""
    fun.plan(*args)
    (context,) = fun._planner.contexts
    (graph,) = context.graphs
    return graph


@pytest.fixture(scope="module")
def graph() -> Graph:
    clear_caches()  # a cell is named by the first function that had it
    w = {"scale": jnp.float32(2), "join": jnp.ones((4, 2))}
    x, y, z = np.eye(3, 2, dtype=np.float32)
    return graph_of(jitbatch(lambda w, node: tree.__wrapped__(w, node)), w, [((x, y), z)])


def test_what_the_arrays_say(graph: Graph) -> None:
    names = [graph.tables.kinds[kind].cell.name for kind in graph.kind]
    assert names == ["scaled", "scaled", "joined", "scaled", "joined"]
    assert graph.inputs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert graph.operands.tolist() == [0, 1, 3, 4, 2, 5, 6]
    assert graph.operand_start.tolist() == [0, 1, 2, 4, 5, 7]
    assert graph.level.tolist() == [0, 0, 1, 0, 2]
    assert graph.producer.tolist() == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert graph.outputs.tolist() == [7]
    graph.verify()


def test_a_graph_can_be_printed(graph: Graph) -> None:
    lines = str(graph).splitlines()
    assert lines[0] == "graph of 5 nodes"
    assert "v5:float32[2] = joined(" in lines[3]
    assert lines[3].endswith("# level 1")
    assert lines[-1] == "  return v7"


def changed(array: np.ndarray, at: int, value: int) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


BREAKS: dict[str, Callable[[Graph], dict[str, Any]]] = {
    "inputs has three columns": lambda g: {"inputs": g.inputs[:, :2]},
    "one entry a node": lambda g: {"operand_start": g.operand_start[:-1]},
    "operands are covered": lambda g: {"operands": g.operands[:-1]},
    "every value has a class": lambda g: {"value_class": g.value_class[:-1]},
    "shared rows exist": lambda g: {
        "shared_rows": np.array([len(g.tables.shared)]),
        "value_class": np.append(g.value_class, 0),
        "node_values": g.node_values + 1,
    },
    "outputs are values": lambda g: {"outputs": np.array([len(g.value_class)])},
    "the kinds of its nodes are present": lambda g: {"kinds_present": g.kinds_present[:-1]},
    "node 2 is one level above what it reads": lambda g: {"level": changed(g.level, 2, 2)},
    "edges are present once, ascending": lambda g: {"edges_present": g.edges_present[::-1]},
    "the edges between its nodes are present": lambda g: {"edges_present": g.edges_present[:-1]},
    "values are those of nodes": lambda g: {"node_values": changed(g.node_values, 1, 5)},
    "one output a leaf of the result": lambda g: {"out_tree": jax.tree.structure((0, 0))},
    "node 2 has an operand for each row of its kind": lambda g: {"operand_start": changed(g.operand_start, 3, 3)},
    "node 0 reads only earlier values": lambda g: {"operands": changed(g.operands, 0, 3)},
    "node 4 reads only earlier values": lambda g: {"operands": changed(g.operands, 5, 7)},
    "node 0 reads values of the right classes": lambda g: {"value_class": changed(g.value_class, 0, 99)},
    "node 4 makes the values of its kind": lambda g: {"value_class": changed(g.value_class, 7, 99)},
}


@pytest.mark.parametrize("law", BREAKS)
def test_a_broken_graph_is_noticed(graph: Graph, law: str) -> None:
    with pytest.raises(VerifyError, match=f"graph: {law}"):
        replace(graph, **BREAKS[law](graph)).verify()


@pytest.mark.parametrize(
    "broken",
    [
        lambda g: {"kind": changed(g.kind, 0, len(g.tables.kinds))},
        lambda g: {"kind": changed(g.kind, 0, -1)},
        lambda g: {"operands": changed(g.operands, 0, -1)},
        lambda g: {"outputs": np.array([-1])},
        lambda g: {"operand_start": changed(g.operand_start, 1, 5)},
    ],
    ids=["no such kind", "negative kind", "negative operand", "negative output", "operands go backwards"],
)
def test_numbers_out_of_range_are_noticed(graph: Graph, broken: Callable[[Graph], dict[str, Any]]) -> None:
    with pytest.raises(VerifyError, match="graph: "):
        replace(graph, **broken(graph)).verify()


def test_what_depends_on_shared_arguments_alone_is_a_shared_value() -> None:
    graph = graph_of(jitbatch(lambda w, x: jnp.exp(w) * x), jnp.ones(2), [jnp.ones(2)])
    assert graph.node_count == 1
    assert any(isinstance(entry, SharedResult) for entry in graph.tables.shared.entries)
