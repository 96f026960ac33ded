"""Numbering: recordings as graphs, one by one and together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES

from jitbatch import jitbatch
from jitbatch.core import choice
from jitbatch.core.reference.numbering import Ends
from jitbatch.ir.graph import Graph
from jitbatch.record.finalise import PARTS
from jitbatch.record.rows import BARE


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


# Two kinds: one that makes two values of what it reads, and a variadic one with effects.
ENDS = Ends(*(np.array(one, np.int32) for one in ([0, 2, 3], [5, 6, 7], [0, 2, 3], [0, 1], [0, 1])))


def numbered(*recording: Any) -> tuple[dict[str, list[int]], list[tuple[int, int]]]:
    numbers, ends, edges, _ = choice.number(ENDS, *recording)
    parts = (numbers[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False))
    return dict(zip(PARTS, parts, strict=True)), edges


@pytest.mark.parametrize("core", CORES)
def test_levels_edges_and_what_is_needed(core: str) -> None:
    """Node 3 reads nodes 1 and 0, across two levels, and node 1 twice; nothing reads node 2; node 4 has effects."""
    operands = [-1, -2, 0, BARE, -3, -3, BARE + 1, 1, -1, 0, 0]
    made = [0, BARE, BARE + 1, 1, 2, 3, 4, 5, 6]
    given = [(4, 0, 0), (-1, 9, 0), (7, 0, 0)]
    with choice.using(core):
        part, edges = numbered(
            [0, 0, 0, 0, 1], [2, 2, 2, 2, 3], operands, made, [5, -2], given, [5, 6, 5], [()] * 8
        )  # fmt: skip
    assert part["kind"] == [0, 0, 0, 1]
    assert part["level"] == [0, 1, 2, 1]
    assert part["inputs"] == [4, 0, 0]
    assert part["shared_rows"] == [9]
    assert part["operands"] == [0, 1, 2, 3, 4, 5, 0, 2, 2]
    assert part["value_class"] == [5, 6, 5, 6, 5, 6, 5, 6, 7]
    assert part["outputs"] == [7, 1]
    assert part["node_values"] == [2, 4, 6, 8, 9]
    assert part["kinds_present"] == [0, 1]
    assert edges == [(0, 0), (0, 2), (1, 1)]


@pytest.mark.skipif("native" not in CORES, reason="there is no compiled core")
@pytest.mark.parametrize(
    "recording",
    [
        ([5], [0], [], [], [], [], [], []),
        ([0], [-1], [], [0, 1], [], [], [], []),
        ([0], [2], [0, 0], [0, 1], [0], [], [], []),  # reads itself
        ([0], [2], [7, 0], [0, 1], [0], [], [], []),
        ([0], [2], [-9, -1], [0, 1], [0], [(0, 0, 0)], [0], [()]),
        ([0], [3], [-1, -1, -1, -1], [0, 1], [0], [(0, 0, 0)], [0], [()]),
        ([0], [2], [-1, -1], [-1, 1], [1], [(0, 0, 0)], [0], [()]),
        ([0], [2], [-1, -1], [0, 1 << 39], [0], [(0, 0, 0)], [0], [()]),
        ([0], [2], [-1, -1], [0, 1], [5], [(0, 0, 0)], [0], [()]),
        ([0], [2], [-1, -1], [0, 1], [0], [(0, 2, 0)], [0], [(3,)]),
        ([0], [2], [-1, -1], [0, 1], [0], [(0, 0, -5)], [0], [()]),
        ([0], [2], [-1, -1], [0, 1], [0], [(0, 0, 0)], [-4], [()]),
        ([0], [2], [-1, -1], [0, 1], [0], [(0, 0, 0)], [], [()]),
        ([0], [2], ["text", -1], [0, 1], [0], [(0, 0, 0)], [0], [()]),
        (None, [], [], [], [], [], [], []),
    ],
)
def test_recordings_that_are_none(recording: Any) -> None:
    with choice.using("native"), pytest.raises((ValueError, TypeError, IndexError)):
        numbered(*recording)


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
