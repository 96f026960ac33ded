"""Equal input rows and equal calls are merged, exactly those, and numbered in the order of their appearance."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import jitbatch
from jitbatch.core.choice import make_type_table, using

every_core = pytest.mark.parametrize("core", CORES)
laws = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def make_table(core: str, may_merge: tuple[bool, ...] = (True, True, True)) -> Any:
    """Types 0, 1 and 2, whose nodes make one value of 0, 1 and 2 others; kinds are types."""
    with using(core):
        types = [(1, rows, False, merges) for rows, merges in enumerate(may_merge)]
        recipes = {
            kind: ([(kind, [(0, column, 0) for column in range(kind)])], [(0, 0)]) for kind in range(len(may_merge))
        }
        return make_type_table(types, [], recipes)


def graph(table: Any, inputs: int, reads: list[list[int]]) -> Any:
    """Nodes that read these values each; their kind is how many they read."""
    start = np.cumsum([0, *map(len, reads)]).astype(np.int32)
    operands = ints(*(value for read in reads for value in read))
    rows = np.stack([np.zeros(inputs, np.int32), np.arange(inputs, dtype=np.int32)])
    return table.graph(
        ints(*map(len, reads)), start, operands, ints(), ints(*range(inputs + len(reads))), rows,
        np.array([[0], [inputs]], np.int32),
    )  # fmt: skip


def batch_of(table: Any, samples: list[tuple[np.ndarray, list[list[int]]]], dedupe: bool = True) -> tuple[Any, Any]:
    """A batch of samples, each of which has the rows of an array as inputs; and its input rows."""
    arrays = [rows for rows, _ in samples]
    size = arrays[0].itemsize * math.prod(arrays[0].shape[1:])
    inputs = table.inputs([[(0, [rows])] for rows in arrays], [(arrays[0].dtype.kind, arrays[0].itemsize, size)])
    assert inputs.unread == []
    graphs = [graph(table, len(rows), reads) for rows, reads in samples]
    return table.batch(graphs, inputs, ints(), ints(), ints(0), dedupe), inputs


def merged_by_dict(samples: list[tuple[np.ndarray, list[list[int]]]]) -> list[int]:
    """The leader of each node, by a dictionary."""
    seen: dict[Any, int] = {}
    leaders: list[int] = []
    for rows, reads in samples:
        identity: list[Any] = [("input", row.tobytes()) for row in rows]
        for read in reads:
            leader = seen.setdefault((len(read), *(identity[value] for value in read)), len(leaders))
            leaders.append(leader)
            identity.append(("node", leader))
    return leaders


@st.composite
def calls(draw: Any) -> tuple[np.ndarray, list[list[int]]]:
    keys = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    size = draw(st.integers(0, 14))
    reads = [draw(st.lists(st.integers(0, len(keys) + i - 1), max_size=2)) for i in range(size)]
    return np.array(keys, np.int32), reads


@every_core
@laws
@given(st.lists(calls(), min_size=1, max_size=4))
def test_equal_calls_have_one_leader(core: str, samples: list[tuple[np.ndarray, list[list[int]]]]) -> None:
    batch, _ = batch_of(make_table(core), samples)
    assert batch.leader.tolist() == merged_by_dict(samples)
    assert batch.nodes.tolist() == [node for node, leader in enumerate(batch.leader.tolist()) if node == leader]
    apart, _ = batch_of(make_table(core), samples, dedupe=False)
    assert apart.leader.tolist() == list(range(apart.node_count))


@every_core
def test_calls_that_may_not_merge_stay_apart(core: str) -> None:
    sample = ints(7), [[0], [0], [0, 0], [0, 0]]
    batch, _ = batch_of(make_table(core, (True, False, True)), [sample])
    assert batch.leader.tolist() == [0, 1, 2, 2]


@every_core
@pytest.mark.parametrize("shape", [(60, 1), (60, 3), (60, 5), (60, 2, 2), (60,), (1, 3), (4, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "bool", "int16"])
def test_rows_are_compared_bit_by_bit(core: str, shape: tuple[int, ...], dtype: str) -> None:
    rows = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    if rows.dtype.kind == "f":
        rows = np.where(rows > 0, rows, -rows)  # zeros of both signs
    batch, inputs = batch_of(make_table(core), [(rows[: len(rows) // 2], []), (rows[len(rows) // 2 :], [])])
    seen: dict[bytes, int] = {}
    want = [seen.setdefault(np.ascontiguousarray(row).tobytes(), len(seen)) for row in rows]
    assert batch.value_row.tolist() == want
    assert inputs.count(0) == len(seen)
    out = np.full((len(seen) + 2, *shape[1:]), 1, dtype)
    inputs.write(0, out)
    assert out.tobytes() == b"".join(seen) + bytes(2 * rows.itemsize * math.prod(shape[1:]))


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_clipped_gradients_are_those_of_each_call(executor: Any) -> None:
    """A derivative rule that is not linear sees the cotangent of each call, not the sum over equal calls."""

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1.0, 1.0),))
    w, cell = jnp.float32(2), jitbatch(lambda w, x: clipped(w * x))

    def loss(run: Any) -> Any:
        return jax.grad(lambda w: sum(3.0 * y for y in run(w)))(w)

    fun = jitbatch(lambda w, x: cell(w, x), executor=executor)
    xs = [5.0, 5.0, 5.0]
    want = loss(lambda w: [cell.__wrapped__(w, x) for x in xs])
    assert want == 15.0
    plan = fun.plan(w, xs)
    assert loss(lambda w: list(fun.batch(w, plan))) == want
