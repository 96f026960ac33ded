"""Deduplication is exact, whatever the hash says, and numbers things in the order of their appearance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import jitbatch
from jitbatch.batch import dedupe, fingerprints
from jitbatch.batch.dedupe import equal_rows, merge_calls
from jitbatch.batch.join import Batch
from jitbatch.ir.ranks import by_stage
from jitbatch.util.csr import offsets

HASHES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "real": dedupe._hash_rows,
    "all equal": lambda words: np.zeros(len(words), np.uint64),
    "two values": lambda words: words[:, 0] % np.uint64(2),
    "first word": lambda words: words[:, 0].copy(),
}


MIXERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "real": fingerprints.mixed,
    "all equal": lambda words: np.zeros_like(words),
    "two values": lambda words: words % 2,
    "first word": lambda words: words.copy(),
}


@pytest.fixture(params=HASHES)
def hashed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(dedupe, "_hash_rows", HASHES[request.param])
    mix_by(MIXERS[request.param], monkeypatch)
    return request.param


def mix_by(mixed: Callable[[np.ndarray], np.ndarray], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dedupe, "mixed", mixed)
    patch.setattr(fingerprints, "mixed", mixed)


def check(rows: np.ndarray) -> None:
    """Compare with the plain loop."""
    seen: dict[bytes, int] = {}
    want_first, want_which = [], []
    for i, row in enumerate(rows):
        bits = np.ascontiguousarray(row).tobytes()
        if bits not in seen:
            seen[bits] = len(seen)
            want_first.append(i)
        want_which.append(seen[bits])
    first, which = equal_rows(rows)
    assert first.tolist() == want_first
    assert which.tolist() == want_which


@pytest.mark.usefixtures("hashed")
@pytest.mark.parametrize("shape", [(60, 1), (60, 3), (60, 5), (60, 2, 2), (60,), (1, 3), (4, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "bool"])
def test_rows_are_compared_bit_by_bit(shape: tuple[int, ...], dtype: str) -> None:
    check(np.random.default_rng(0).integers(0, 2, shape).astype(dtype))


@pytest.mark.usefixtures("hashed")
def test_signs_of_zero_and_nans_are_bits() -> None:
    nan, other_nan = np.array([0x7FF8 << 48, (0x7FF8 << 48) + 1], np.uint64).view(np.float64)
    column = np.array([0.0, -0.0, nan, 0.0, other_nan, nan, -0.0])
    check(column)
    check(np.stack([column, np.ones(7), np.ones(7)], axis=1))


@pytest.mark.usefixtures("hashed")
def test_a_collision_between_equal_rows_merges_nothing_else() -> None:
    # With the hash of the first word, rows 0, 1 and 2 collide though only 0 and 2 are equal.
    check(np.array([[1, 5], [1, 6], [1, 5], [2, 5], [1, 6]], np.uint64))


def test_no_rows() -> None:
    check(np.zeros((0, 3), np.float32))


def test_rows_of_a_view_are_compared() -> None:
    base = np.arange(24).reshape(4, 6) % 3
    check(base[:, ::2])
    check(base.T)
    check(base[::-1])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_any_rows(rows: list[tuple[int, int, int]]) -> None:
    check(np.array(rows, np.int64).reshape(-1, 3))


def test_the_real_hash_tells_rows_apart() -> None:
    rows = np.random.default_rng(0).integers(0, 4, (5000, 6)).astype(np.uint64)
    distinct = np.unique(rows, axis=0)
    assert len(np.unique(dedupe._hash_rows(distinct))) == len(distinct)


# --- Calls


def batch_of(kinds: list[int], reads: list[list[int]], may_merge: list[bool], inputs: int) -> Batch:
    """Nodes with one output each; levels follow from what is read."""
    levels: list[int] = []
    for read in reads:
        levels.append(max((levels[value - inputs] + 1 for value in read if value >= inputs), default=0))
    kind, level, arity = np.array(kinds, int), np.array(levels, int), np.array([len(read) for read in reads], int)
    operands = np.array([value for read in reads for value in read], int)
    column = np.array([column for read in reads for column, _ in enumerate(read)], int)
    place = fingerprints.place_of(np.repeat(kind, arity), column)
    node = np.maximum(operands - inputs, -1)
    given, none = np.where(node < 0, operands, -1), np.full(len(operands), -1)
    inner, reader = node >= 0, np.repeat(np.arange(len(kind)), arity)
    stages = by_stage(level, reader[inner], node[inner])
    operands_of = fingerprints.Operands(place, node, np.where(inner, 0, -1), given, none)
    return Batch(
        type=kind,
        level=level,
        layer=level,
        arity=arity,
        operand_start=offsets(arity),
        operands=operands,
        place=place,
        first_value=inputs + np.arange(len(kind)),
        made=np.ones(len(may_merge), int),
        shapes=fingerprints.find_shapes(kind, arity, operands_of, inputs, stages),
        values=inputs + len(kind),
        input_values=np.arange(inputs),
        input_class=np.zeros(inputs, int),
        input_row=np.arange(inputs),
        sample_of_input=np.zeros(inputs, int),
        shared_values=np.zeros(0, int),
        shared_numbers=np.zeros(0, int),
        outputs=np.zeros(0, int),
    )


def merged(kinds: list[int], reads: list[list[int]], may_merge: list[bool], keys: list[int]) -> np.ndarray:
    """Which nodes are merged, over inputs with the given keys."""
    value_key = np.array([*keys, *range(1000, 1000 + len(kinds))])
    before = value_key.copy()
    leader = merge_calls(batch_of(kinds, reads, may_merge, len(keys)), np.array(may_merge), value_key)
    assert np.array_equal(value_key, before)
    return leader


def merged_by_dict(kinds: list[int], reads: list[list[int]], keys: list[int]) -> list[int]:
    """The same by a dictionary."""
    seen: dict[Any, int] = {}
    key_of: list[Any] = [("input", key) for key in keys]
    leader = []
    for node, (kind, read) in enumerate(zip(kinds, reads, strict=True)):
        key = (kind, *(key_of[value] for value in read))
        leader.append(seen.setdefault(key, node))
        key_of.append(("node", leader[-1]))
    return leader


@st.composite
def calls(draw: Any) -> tuple[list[int], list[list[int]], list[int]]:
    keys = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    size = draw(st.integers(0, 14))
    reads = [draw(st.lists(st.integers(0, len(keys) + i - 1), max_size=3)) for i in range(size)]
    return [draw(st.integers(0, 1)) for _ in range(size)], reads, keys


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(calls())
def test_any_calls(drawn: tuple[list[int], list[list[int]], list[int]]) -> None:
    kinds, reads, keys = drawn
    for mixed in MIXERS.values():
        with pytest.MonkeyPatch.context() as patch:
            mix_by(mixed, patch)
            assert merged(kinds, reads, [True, True], keys).tolist() == merged_by_dict(kinds, reads, keys)


@pytest.mark.usefixtures("hashed")
def test_equal_calls_are_merged_level_by_level() -> None:
    # Inputs 0 and 1 are equal, 2 differs. Nodes 3 to 8.
    leader = merged([0, 0, 0, 1, 1, 1], [[0], [1], [2], [3, 5], [4, 5], [5, 4]], [True, True], [7, 7, 9])
    assert leader.tolist() == [0, 0, 2, 3, 3, 5]


def test_calls_of_different_kinds_are_not_merged() -> None:
    assert merged([0, 1, 0], [[0], [0], [0]], [True, True], [7]).tolist() == [0, 1, 0]


def test_calls_with_effects_are_not_merged() -> None:
    assert merged([0, 0, 1, 1], [[0], [0], [0], [0]], [False, True], [7]).tolist() == [0, 1, 2, 2]
    assert merged([0, 0], [[0], [0]], [False], [7]).tolist() == [0, 1]


def test_calls_without_operands_are_equal() -> None:
    assert merged([0, 0, 1], [[], [], []], [True, True], []).tolist() == [0, 0, 2]


def test_what_shapes_miss_is_found() -> None:
    # Nodes 2 and 3 read the same input twice, and two inputs that are equal.
    assert merged([0, 0, 1, 1], [[0, 0], [1, 2], [3], [4]], [True, True], [7, 7, 7]).tolist() == [0, 0, 2, 2]
    # Between the inputs of the last node there is one that does not go into it.
    kinds, reads = [0, 0, 0, 0, 0, 0], [[0, 2], [1], [3, 5], [4], [6], [8]]
    assert merged(kinds, reads, [True], [7, 1, 8, 7, 2, 8]).tolist() == [0, 1, 0, 3, 4, 4]


def test_a_chain_that_shapes_miss_is_looked_at_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains, which begin with what shapes do not know to be equal: each node is compared once more, not each time
    that one below it was merged."""
    looked_at: list[int] = []
    first_equal = dedupe._first_equal

    def noting(batch: Batch, key: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        looked_at.append(len(nodes))
        return first_equal(batch, key, nodes)

    monkeypatch.setattr(dedupe, "_first_equal", noting)
    depth = 300
    reads = [[0, 0], [1, 2], *([3 + node] for node in range(2 * depth))]
    leader = merged([0, 0, *[1] * (2 * depth)], reads, [True, True], [7, 7, 7])
    assert leader.tolist() == [node - node % 2 for node in range(2 * depth + 2)]
    assert 0 < sum(looked_at) <= 2 * depth


def test_shapes_alone_find_equal_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees over words, with a label for each node that comes after all words."""
    monkeypatch.setattr(dedupe, "_merge_readers", None)
    words, labels = [[0], [1], [10, 11], [2], [3], [13, 14]], [[10 + node, 4 + node] for node in range(6)]
    keys = [3, 4, 3, 4, 0, 0, 1, 0, 0, 1]
    leader = merged([0, 0, 1, 0, 0, 1, *[2] * 6], words + labels, [True] * 3, keys)
    assert leader.tolist() == [0, 1, 2, 0, 1, 2, 6, 7, 8, 6, 7, 8]


def test_no_calls() -> None:
    assert merged([], [], [True], [7]).tolist() == []


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
