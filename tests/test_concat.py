"""Concatenation: the graphs of a batch as one, with nothing mixed up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import jitbatch
from jitbatch._concat import concatenate, offsets, ranges
from jitbatch._graph import Graph


@jitbatch
def leaf(w: Any, x: Any) -> Any:
    return w * x, jnp.sum(x)


@jitbatch
def join(w: Any, x: Any, y: Any) -> Any:
    return jnp.sin(x[0]) - y[0] + w, x[1] * y[1]


def encode(w: Any, tree: Any) -> Any:
    return join(w, *(encode(w, child) for child in tree)) if isinstance(tree, tuple) else leaf(w, tree)


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    x = np.float32([1, 2])
    batched = jitbatch(lambda w, tree: (encode(w, tree), w), out="list")
    batched.plan(x, [((x, x), x), x, (x, x)])
    (context,) = batched._contexts
    return list(context.graphs)


def test_every_graph_is_found_again(graphs: list[Graph]) -> None:
    batch = concatenate(graphs)
    value = node = out = given_inputs = given_shared = 0
    for graph in graphs:
        values, nodes = slice(value, value + len(graph.value_class)), slice(node, node + graph.node_count)
        assert batch.value_class[values].tolist() == graph.value_class.tolist()
        assert batch.kind[nodes].tolist() == graph.kind.tolist()
        assert batch.level[nodes].tolist() == graph.level.tolist()
        assert (batch.first_value[nodes] - value).tolist() == graph.node_values[:-1].tolist()
        producer = batch.producer[values]
        assert np.where(producer >= 0, producer - node, -1).tolist() == graph.producer.tolist()
        for i in range(graph.node_count):
            begin, end = batch.operand_start[node + i : node + i + 2]
            own = graph.operands[graph.operand_start[i] : graph.operand_start[i + 1]]
            assert (batch.operands[begin:end] - value).tolist() == own.tolist()
        assert (batch.outputs[out : out + len(graph.outputs)] - value).tolist() == graph.outputs.tolist()
        inputs, shared = len(graph.inputs), len(graph.shared_rows)
        got = batch.input_values[given_inputs : given_inputs + inputs] - value
        assert got.tolist() == list(range(inputs))
        got = batch.shared_values[given_shared : given_shared + shared] - value
        assert got.tolist() == list(range(inputs, inputs + shared))
        assert batch.shared_numbers[given_shared : given_shared + shared].tolist() == graph.shared_rows.tolist()
        value, node, out = values.stop, nodes.stop, out + len(graph.outputs)
        given_inputs, given_shared = given_inputs + inputs, given_shared + shared
    assert value == len(batch.value_class)
    assert node == len(batch.kind)
    assert batch.operand_start[-1] == len(batch.operands)


def test_one_graph_is_itself(graphs: list[Graph]) -> None:
    graph = graphs[0]
    batch = concatenate([graph])
    assert batch.operands.tolist() == graph.operands.tolist()
    assert batch.producer.tolist() == graph.producer.tolist()


def test_offsets() -> None:
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets([]).tolist() == [0]


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=6))
def test_ranges(pairs: list[tuple[int, int]]) -> None:
    starts, counts = np.array(pairs, int).reshape(-1, 2).T
    want = [start + i for start, count in pairs for i in range(count)]
    assert ranges(starts, counts).tolist() == want
