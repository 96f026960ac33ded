"""Numbering: recordings as graphs, one by one and together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.record.finalise import levels_of


@jitbatch
def leaf(w: Any, x: Any) -> Any:
    return w["scale"] * x, x


@jitbatch
def joined(w: Any, x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y]) @ w["join"]


def tree(w: Any, node: Any) -> Any:
    """Sums of any number of terms, unused outputs, rows of arrays, constants and shared values as rows."""
    if isinstance(node, list):
        return sum((tree(w, child) for child in node), jnp.zeros(2))
    if isinstance(node, tuple):
        return joined(w, *(tree(w, child) for child in node))
    return leaf(w, node[0] if node.ndim > 1 else node)[0]


W = {"scale": jnp.float32(2), "join": jnp.ones((4, 2)), "root": jnp.ones(2)}
X = np.float32([1, 2])
XS = np.float32([[1, 2], [3, 4], [5, 6]])
SAMPLES: list[Any] = [X, (X, XS), [X, (X, X), X, [X]], ((X, [XS, X]), X), [], XS]


def graphs_of(samples: list[Any], together: bool, **options: Any) -> list[Graph]:
    fun = jitbatch(lambda w, node: (tree(w, node), w["root"], 2.5, node), out="list", **options)
    for batch in [samples] if together else [[sample] for sample in samples]:
        fun.plan(W, batch)
    (context,) = fun._planner.contexts
    return list(context.graphs)


@pytest.mark.parametrize("granularity", ["subgraph", "op", "graph"])
def test_graphs_are_the_same_whatever_they_are_numbered_with(granularity: str) -> None:
    together = graphs_of(SAMPLES, True, granularity=granularity, executor="fused")
    alone = graphs_of(SAMPLES, False, granularity=granularity, executor="fused")
    assert len(together) == len(alone) == len(SAMPLES)
    names = ("inputs", "shared_rows", "kind", "operand_start", "operands", "value_class", "outputs", "level")
    for one, other in zip(together, alone, strict=True):
        one.verify()
        assert str(one) == str(other)
        for name in (*names, "node_values", "kinds_present"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert one.input_rows.of_input.tolist() == other.input_rows.of_input.tolist()
        assert one.out_tree == other.out_tree


def test_a_structure_that_is_new_twice_in_a_batch_is_recorded_once() -> None:
    calls = []

    @jitbatch
    def fun(w: Any, node: Any) -> Any:
        calls.append(node)
        return tree(w, node)

    fun.plan(W, [(X, X), X, (X, 2 * X)])
    assert len(calls) == 2
    fun.plan(W, [(X, X), (X, (X, X)), (X, (X, X))])
    assert len(calls) == 3
    info = fun.cache_info()["structures"]
    assert (info.hits, info.misses, info.currsize) == (3, 3, 3)


def test_an_error_names_the_sample_and_what_was_recorded_before_is_kept() -> None:
    @jitbatch
    def fun(w: Any, node: Any) -> Any:
        if isinstance(node, list):
            raise ValueError("no lists")
        return tree(w, node)

    with pytest.raises(ValueError, match="no lists") as caught:
        fun.plan(W, [X, (X, X), [X]])
    assert "sample 2 of" in caught.value.__notes__[0]
    assert fun.cache_info()["structures"].currsize == 2
    values = fun.batch(W, [X, (X, X)])
    np.testing.assert_allclose(values, jnp.stack([tree(W, X), tree(W, (X, X))]), rtol=1e-6)


def test_levels() -> None:
    # Node 3 reads nodes 1 and 0, across two levels, and node 1 twice.
    reader, read = np.array([1, 3, 3, 3]), np.array([0, 1, 1, 0])
    assert levels_of(4, reader, read).tolist() == [0, 1, 0, 2]
    assert levels_of(0, np.zeros(0, int), np.zeros(0, int)).tolist() == []


def test_values_of_what_was_numbered_together() -> None:
    fun = jitbatch(tree)
    samples = [sample for sample in SAMPLES if not isinstance(sample, list) or sample]
    want = jnp.stack([tree(W, jax.tree.map(jnp.asarray, sample)) for sample in samples])
    np.testing.assert_allclose(fun.batch(W, samples), want, rtol=1e-6)


def test_inputs_come_before_shared_values_whatever_is_read_first() -> None:
    fun = jitbatch(lambda w, x: (w["root"], x))
    root, x = fun.batch(W, [X, 3 * X])
    np.testing.assert_array_equal(root, [W["root"]] * 2)
    np.testing.assert_array_equal(x, [X, 3 * X])
    (context,) = fun._planner.contexts
    (graph,) = context.graphs
    assert graph.outputs.tolist() == [1, 0]
