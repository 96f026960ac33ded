"""Grouping: a program in bare jnp comes out as one cell type for each kind of node, whatever the sample's size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import Static, jitbatch
from jitbatch.record import group_cells
from jitbatch.record.grouping import Item, group_items, group_operations, needed_groups
from jitbatch.util.sites import Site

H = 2
W = {"embed": jnp.ones((5, H)), "compose": jnp.ones((2 * H, 5 * H)), "out": jnp.ones(H)}


def types_of(fun: Any, *args: Any) -> list[Any]:
    """The cells of a batch, one for each type of node."""
    whole = jitbatch(fun.__wrapped__, executor="dispatch")  # the fused executor splits cells
    kinds = {step.kind for step in whole.plan(*args).static.program.step_shapes}
    return sorted((kind.cell for kind in kinds), key=lambda cell: cell.digest)


# --- A Tree-LSTM in bare jnp


def gate(x: Any) -> Any:
    return jax.nn.sigmoid(x)


def leaf(w: Any, word: Any) -> Any:
    c = w["embed"][word]
    return jnp.tanh(c), c


def compose(w: Any, left: Any, right: Any) -> Any:
    i, o, f, g, u = jnp.split(jnp.concatenate([left[0], right[0]]) @ w["compose"], 5)
    c = gate(i) * jnp.tanh(u) + gate(f) * left[1] + gate(g) * right[1]
    return gate(o) * jnp.tanh(c), c


def encode(w: Any, tree: Any) -> Any:
    if isinstance(tree, tuple):
        left, right = (encode(w, child) for child in tree)
        return compose(w, left, right)
    return leaf(w, tree)


def inline(w: Any, tree: Any) -> Any:
    """The same without helper functions."""
    if not isinstance(tree, tuple):
        c = w["embed"][tree]
        return jnp.tanh(c), c
    (h_left, c_left), (h_right, c_right) = inline(w, tree[0]), inline(w, tree[1])
    i, o, f, g, u = jnp.split(jnp.concatenate([h_left, h_right]) @ w["compose"], 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * c_left + jax.nn.sigmoid(g) * c_right
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


class Model:
    def encode(self, w: Any, tree: Any) -> Any:
        if isinstance(tree, tuple):
            return compose(w, *[self.encode(w, child) for child in tree])
        return leaf(w, tree)


READ = {"state": lambda w, state: state, "readout": lambda w, state: state[0] @ w["out"]}
ENCODERS = {"helpers": encode, "inline": inline, "method": Model().encode}
TREES = [((1, 2), (3, (4, 0))), (1, (2, (3, 4))), ((1, 2), 3), (0, 1)]


every_encoder = pytest.mark.parametrize("encoder", ENCODERS)
every_result = pytest.mark.parametrize("result", READ)


def tree_lstm(encoder: str, result: str, **options: Any) -> Any:
    return jitbatch(lambda w, tree: READ[result](w, ENCODERS[encoder](w, tree)), **options)


@every_encoder
@every_result
def test_a_tree_lstm_is_one_cell_type_for_each_kind_of_node(encoder: str, result: str) -> None:
    kinds = {"state": 2, "readout": 3}[result]
    assert len(types_of(tree_lstm(encoder, result), W, TREES)) == kinds


@every_encoder
def test_nodes_of_a_level_run_together(encoder: str) -> None:
    summary = tree_lstm(encoder, "state", policy="depth", dedupe=False, executor="dispatch").plan(W, TREES).summary
    assert summary.nodes == 14 + 10
    assert (summary.levels, summary.steps) == (4, 4)


@every_encoder
@every_result
def test_a_single_leaf_has_the_cell_types_of_the_others(encoder: str, result: str) -> None:
    fun = tree_lstm(encoder, result)
    assert len(types_of(fun, W, [3])) < len(types_of(fun, W, TREES)) == len(types_of(fun, W, [3, *TREES]))


def test_results_are_those_of_the_loop() -> None:
    fun = jitbatch(lambda w, tree: encode(w, tree)[0])
    want = jnp.stack([encode(W, tree)[0] for tree in TREES])
    np.testing.assert_allclose(fun.batch(W, TREES), want, rtol=1e-5)


# --- Loops


def rnn(w: Any, xs: Any) -> Any:
    h = jnp.zeros(H)
    for x in xs:
        z = gate(jnp.concatenate([x, h]) @ w["compose"][:, :H])
        h = z * h + (1 - z) * jnp.tanh(x)
    return h


def rnn_with_index(w: Any, xs: Any) -> Any:
    h = w["out"]
    i = 0
    while i < len(xs):
        h = step(w, xs[i], h)
        i += 1
    return h


def step(w: Any, x: Any, h: Any) -> Any:
    return jnp.tanh((x + h) * w["out"])


@pytest.mark.parametrize("fun", [rnn, rnn_with_index], ids=lambda fun: fun.__name__)
def test_the_types_of_a_loop_do_not_depend_on_its_length(fun: Any) -> None:
    batched = jitbatch(fun)
    samples = [jnp.ones((length, H)) for length in (3, 4, 7)]
    cells = [types_of(batched, W, [sample]) for sample in samples]
    assert cells[0] == cells[1] == cells[2]
    plan = jitbatch(fun, executor="dispatch").plan(W, samples)
    assert plan.summary.nodes == 14
    assert plan.summary.steps == 7


def test_the_turn_of_a_loop_is_one_cell() -> None:
    assert len(types_of(jitbatch(rnn), W, [jnp.ones((5, H))])) == 1


def test_bucket_counts_of_nested_loops() -> None:
    def fun(w: Any, rows: Any) -> Any:
        h = w["out"]
        for row in rows:
            for x in row:
                h = jnp.tanh(h * x)
            h = jnp.sin(h) + 1.0
        return h

    batched = jitbatch(fun)
    cells = types_of(batched, W, [jnp.ones((3, 2, H))])
    assert types_of(batched, W, [jnp.ones((4, 3, H))]) == cells


# --- Recursion that a function's own code does not show


def even(w: Any, tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return w["embed"][tree]
    return jnp.tanh(odd(w, tree[0]) + odd(w, tree[1]))


def odd(w: Any, tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return -w["embed"][tree]
    return jnp.sin(even(w, tree[0]) * even(w, tree[1]))


def test_mutual_recursion() -> None:
    fun = jitbatch(even)
    deep = (((1, 2), 3), (4, 0))  # each function is active twice at once somewhere
    deeper = (deep, (deep, 1))
    cells = types_of(fun, W, [deep])
    assert len(cells) == 4  # the leaf and the node of each function
    assert types_of(fun, W, [deeper]) == cells
    trees = [3, (1, 2), deep, deeper]
    want = jnp.stack([even(W, tree) for tree in trees])
    np.testing.assert_allclose(fun.batch(W, trees), want, rtol=1e-5)


def test_recursion_by_a_function_that_is_passed_along() -> None:
    def node(recur: Any, w: Any, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return w["embed"][tree]
        return jnp.tanh(recur(recur, w, tree[0]) + recur(recur, w, tree[1]))

    fun = jitbatch(lambda w, tree: node(node, w, tree))
    few = types_of(fun, W, [((1, 2), (3, 4))])
    many = types_of(fun, W, [(((1, 2), (3, 4)), ((0, 1), (2, 3)))])
    assert few == many
    assert len(few) == 2


# --- Boundaries


def test_bare_operations_around_subgraphs() -> None:
    @jitbatch
    def cell(w: Any, h: Any) -> Any:
        return jnp.tanh(h) * w["out"]

    def fun(w: Any, sample: Any) -> Any:
        times, h = sample
        for _ in range(times.value):
            h = cell(w, jnp.sin(h) + 1.0) - 1.0
        return h

    batched = jitbatch(fun)
    names = [cell.name for cell in types_of(batched, W, [(Static(3), jnp.ones(H))])]
    assert sum(name.endswith("cell") for name in names) == 1
    assert types_of(batched, W, [(Static(5), jnp.ones(H))]) == types_of(batched, W, [(Static(3), jnp.ones(H))])


# --- The rule itself


def site(place: int) -> Site:
    return Site((), place)


def test_connected_operations_of_a_run_are_a_group() -> None:
    sites = [site(i) for i in range(4)]
    assert group_operations(sites, [0] * 4, [[], [0], [], [2]], [None] * len(sites)) == [0, 0, 1, 1]
    assert group_operations(sites, [0] * 4, [[], [0], [0], [1, 2]], [None] * len(sites)) == [0] * 4


def test_a_call_is_a_group_of_its_own_and_ends_the_run() -> None:
    sites = [site(0), None, site(1), None, None]
    assert group_operations(sites, [0] * 5, [[], [0], [0, 1], [2], [3]], [None] * len(sites)) == [0, 1, 2, 3, 4]


def test_a_scope_ends_the_run() -> None:
    sites = [site(i) for i in range(4)]
    assert group_operations(sites, [0, 0, 1, 0], [[], [0], [1], [2]], [None] * len(sites)) == [0, 0, 1, 2]


def test_a_place_that_comes_again_on_a_path_ends_the_run() -> None:
    sites = [site(0), site(1), site(0), site(1)]
    assert group_operations(sites, [0] * 4, [[], [0], [1], [2]], [None] * len(sites)) == [0, 0, 1, 1]
    # Not on a path: two independent turns.
    assert group_operations(sites, [0] * 4, [[], [0], [], [2]], [None] * len(sites)) == [0, 0, 1, 1]


def test_no_operations() -> None:
    assert group_operations([], [], [], []) == []


@st.composite
def programs(draw: Any) -> Any:
    size = draw(st.integers(0, 12))
    sites = [draw(st.none() | st.builds(site, st.integers(0, 3))) for _ in range(size)]
    scopes = [draw(st.integers(0, 1)) for _ in range(size)]
    reads = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(size)]
    return sites, scopes, reads


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(programs())
def test_groups_never_depend_on_each_other_in_a_circle(program: Any) -> None:
    sites, scopes, reads = program
    groups = group_operations(sites, scopes, reads, [None] * len(sites))
    assert sorted(set(groups)) == list(range(len(set(groups))))
    edges = {(groups[other], groups[op]) for op, earlier in enumerate(reads) for other in earlier}
    edges = {(a, b) for a, b in edges if a != b}
    left = set(groups)
    while left:
        free = {group for group in left if not any(b == group and a in left for a, b in edges)}
        assert free, "a circle"
        left -= free
    for op, place in enumerate(sites):
        if place is None:
            assert groups.count(groups[op]) == 1


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(programs())
def test_groups_are_numbered_in_topological_order(program: Any) -> None:
    groups = group_operations(*program, [None] * len(program[0]))
    for op, earlier in enumerate(program[2]):
        assert all(groups[other] <= groups[op] for other in earlier)


# --- The driver


def item(name: str, reads: str, site: Site | None = None, has_effects: bool = False) -> Item:
    """An item that makes the value of its name."""
    return Item(name, list(reads), [name], has_effects, site)


def names(groups: list[list[Item]]) -> list[str]:
    return ["".join(one.content for one in group) for group in groups]


def test_items_are_grouped_between_calls() -> None:
    here = Site((), 0)
    items = [item("a", "x", here), item("b", "a", Site((), 1)), item("c", "b"), item("d", "c", here)]
    assert names(group_items(items)) == ["ab", "c", "d"]


def test_needed_groups_and_what_is_read_outside_of_them() -> None:
    groups = [[item("a", "x"), item("b", "a")], [item("c", "b")], [item("d", "a")], [item("e", "b", None, True)]]
    needed, is_read = needed_groups(groups, "c")
    assert names(needed) == ["ab", "c", "e"]
    assert is_read & set("abcde") == {"b", "c"}
    needed, is_read = needed_groups(groups, "d")
    assert names(needed) == ["ab", "d", "e"]
    assert is_read & set("abcde") == {"a", "b", "d"}


@pytest.mark.parametrize("granularity", ["subgraph", "op"])
def test_equal_groups_are_folded_once(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[Any] = []
    fold = group_cells.fold
    monkeypatch.setattr(
        group_cells, "fold", lambda ops, *args, **options: folded.append(ops) or fold(ops, *args, **options)
    )
    group_cells._group_cells.clear()

    def encode(w: Any, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return jnp.tanh(w * tree)
        left, right = encode(w, tree[0]), encode(w, tree[1])
        return jax.nn.sigmoid(left @ w) * left + 0.5 * right[0]

    f = jitbatch(encode, granularity=granularity, out="list")
    w, trees = jnp.eye(3) / 3, [((1.0, 2.0), 3.0), (1.0, 2.0), (3.0, ((2.0, (5.0, 1.0)), 7.0))]
    f.plan(w, trees[:2])
    met = len(folded)
    f.plan(w, trees[2:])
    assert 0 < met == len(folded)
    for got, tree in zip(f.batch(w, trees), trees, strict=True):
        np.testing.assert_allclose(got, encode(w, tree), rtol=1e-5)


@pytest.mark.parametrize("granularity", ["subgraph", "op"])
def test_groups_that_differ_have_cells_of_their_own(granularity: str) -> None:
    """In a constant, its type, an index, a parameter, the order of operands, their shapes and types, and in outputs."""
    table = np.float32([1.0, 2.0])
    bodies = [
        lambda w, x: x[0] * 2.0 - x[1],
        lambda w, x: x[0] * 3.0 - x[1],
        lambda w, x: x[0] * -0.0 - x[1],
        lambda w, x: x[0] * 0.0 - x[1],
        lambda w, x: x[0] * np.float32(2) - x[1],
        lambda w, x: x[1] * 2.0 - x[0],
        lambda w, x: x[0] * 2.0 - x[0],
        lambda w, x: x[0] * w - x[1],
        lambda w, x: x[0] * x[1] - w,
        lambda w, x: x[0] * table[0] - x[1] + table.sum(),
        lambda w, x: (x[2] * 2.0).sum() - x[1],
        lambda w, x: (x[2][1:] * 2.0).sum() - x[1],
        lambda w, x: (x[2][:2] * 2.0).sum() - x[1],
        lambda w, x: (x[2][::-1] * x[2]).sum() - x[1],
        lambda w, x: x[2].reshape(3, 1).sum(axis=0)[0] - x[1],
        lambda w, x: x[2].reshape(3, 1).max(axis=0)[0] - x[1],
        lambda w, x: jnp.argmax(x[2]) - x[1],
        lambda w, x: jnp.argmin(x[2]) - x[1],
        lambda w, x: jax.lax.stop_gradient(x[0]) * 2.0 - x[1],
        lambda w, x: x[3] * 2 - x[1],
    ]

    def fun(w: Any, x: Any) -> Any:
        return bodies[x[4].value](w, x)

    f = jitbatch(fun, granularity=granularity, out="list")
    samples = [(float(i + 1), float(i) - 3.5, np.float32([i, 2 * i + 1, -i]), i, Static(i)) for i in range(len(bodies))]
    for chosen in (samples, samples[::-1]):
        for got, sample in zip(f.batch(jnp.float32(1.5), chosen), chosen, strict=True):
            want = np.asarray(fun(jnp.float32(1.5), sample))
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert np.signbit(got) == np.signbit(want)
