"""Structures: what makes a sample another program, and samples that come again."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.record import structure as structure_module
from jitbatch.record.structure import Structure, describe_leaf
from jitbatch.util.errors import ArgumentError, SampleError

X = np.float32([1.0, 2.0])


def key(sample: Any) -> Any:
    return Structure((sample,), 0, ["sample"]).key


DIFFER = [
    (1, 1.0),
    (1, True),
    (1.0, np.float32(1)),
    (jnp.float32(1), jnp.asarray(1.0)),  # the second is weakly typed
    (X, X[:1]),
    (X, X.astype(np.int32)),
    ((1.0, 2.0), [1.0, 2.0]),
    ((1.0, (2.0, 3.0)), ((1.0, 2.0), 3.0)),
    ({"a": 1.0}, {"b": 1.0}),
    ({"a": 1.0, "b": 2}, {"b": 2, "a": 1.0}),  # which code that iterates over them sees
    (None, ()),
    (Static(1), Static(2)),
    (Static(0.0), Static(-0.0)),
    ((Static("a"), Static("b")), (Static("b"), Static("a"))),
]
EQUAL = [
    (1.0, 2.0),
    (X, jnp.asarray(X)),
    (np.float32(1), jnp.float32(3)),
    ((Static("a"), 1.0), (Static("a"), 2.0)),
    (jax.random.key(0), jax.random.key(1)),
]


@pytest.mark.parametrize(("one", "other"), DIFFER, ids=repr)
def test_different_structures(one: Any, other: Any) -> None:
    assert key(one) != key(other)


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_equal_structures(one: Any, other: Any) -> None:
    assert key(one) == key(other)
    assert hash(key(one)) == hash(key(other))


def test_static_values_are_part_of_the_hash() -> None:
    assert len({hash(key((Static(i), 1.0))) for i in range(50)}) > 40


def test_a_leaf_that_is_no_array_is_named_by_its_path() -> None:
    sample = (1.0, {"a": [2.0, "text"]})
    told = r"sample 3: tree\[3\]\['a'\]\[1\] is 'text' of type str, .* if Python code is to look at it, or leave it out"
    with pytest.raises(SampleError, match=told):
        Structure(sample, 3, ["x", "tree"])


def test_descriptions_of_leaves() -> None:
    assert describe_leaf(1) is int
    assert describe_leaf(True) is bool
    assert describe_leaf("text") is None
    assert describe_leaf(X) == describe_leaf(jnp.asarray(X)) == ((2,), np.dtype("float32"), False)


# Samples that come again


class Leaf(NamedTuple):
    number: float
    array: Any


@jitbatch
def total(scale: Any, sample: Any) -> Any:
    return scale * sum(jnp.sum(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(sample))


def totals(samples: list[Any]) -> list[float]:
    return np.asarray(total.batch(2.0, samples)).tolist()


def test_a_structure_is_found_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Leaf(float(i), X + i) for i in range(3)]
    expected = [2 * (i + 3 + 2 * i) for i in range(3)]
    assert totals(samples) == expected
    made = []
    monkeypatch.setattr(Structure, "__init__", lambda *args: made.append(args))
    assert totals([Leaf(*sample) for sample in samples[::-1]]) == expected[::-1]
    assert not made


def test_what_is_in_an_array_may_change() -> None:
    samples = [Leaf(1.0, X.copy()), Leaf(2.0, X.copy())]
    assert totals(samples) == [8, 10]
    samples[0].array[:] = 10
    assert totals(samples) == [42, 10]


def test_an_array_may_take_another_shape() -> None:
    samples = [Leaf(1.0, np.ones(4, np.float32))]
    rows = jitbatch(lambda scale, sample: scale * len(sample.array) + sample.number)
    assert rows.batch(2.0, samples).tolist() == [9]
    samples[0].array.shape = (2, 2)
    assert rows.batch(2.0, samples).tolist() == [5]


def test_lists_and_dicts_may_change() -> None:
    def values(sample: Any) -> list[float]:
        return [float(leaf) for leaf in jax.tree.leaves(sample)]

    f = jitbatch(lambda scale, sample: scale * sum(np.prod(np.shape(leaf)) + leaf for leaf in jax.tree.leaves(sample)))
    sample: Any = [1.0, [2.0], {"a": 3.0, "b": [4.0]}]

    def change_to(change: Any) -> None:
        for _ in range(2):
            assert f.batch(2.0, [sample, (1.0,)]).tolist() == [2 * sum(v + 1 for v in values(sample)), 4]
        change()

    change_to(lambda: sample[1].append(5.0))
    change_to(lambda: sample.__setitem__(0, 7.0))
    change_to(lambda: sample[2].update(a=8.0))
    change_to(lambda: sample[2].update(c=9.0))
    change_to(lambda: sample[2].pop("a"))
    change_to(lambda: sample[2]["b"].clear())
    change_to(lambda: sample[2].update(b=[6.0]))
    change_to(lambda: sample.pop())
    change_to(lambda: sample.__setitem__(0, 7))
    change_to(sample.clear)


def test_the_order_of_keys_may_change() -> None:
    def fun(scale: Any, sample: Any) -> Any:
        first, second = sample.values()
        return scale * 10 * first + second

    f, sample = jitbatch(fun), {}
    for first, second in (("a", "b"), ("b", "a"), ("a", "b")):
        sample.clear()
        sample.update({first: 1.0, second: 2.0})
        for _ in range(2):
            assert f.batch(1.0, [sample]).tolist() == [12.0]
        sample[first], sample[second] = sample[second], sample[first]
        assert f.batch(1.0, [sample]).tolist() == [21.0]


def test_samples_that_are_gone_are_not_mistaken_for_others() -> None:
    for number in range(200):
        assert totals([Leaf(float(number), (number, 1) * (number % 3))]) == [2 * (number + (number + 1) * (number % 3))]


def test_a_sample_is_taken_apart_again_after_caches_were_cleared() -> None:
    sample = Leaf(1.0, X)
    assert totals([sample]) == [8]
    clear_caches()
    assert totals([sample]) == [8]


def test_a_sample_is_another_one_with_other_shared_arguments() -> None:
    sample = Leaf(1.0, X)
    assert totals([sample]) == [8]
    assert np.asarray(total.batch(jnp.ones(3), [sample])).tolist() == [[4, 4, 4]]
    assert totals([sample]) == [8]


def test_samples_of_several_arguments_are_told_apart_by_all_of_them() -> None:
    both = jitbatch(lambda scale, x, y: scale * (x[0] + len(y)), in_axes=(None, 0, 0))
    first, second = (1.0,), (2.0,)
    assert both.batch(2.0, [first, second], [(), (1,)]).tolist() == [2, 6]
    assert both.batch(2.0, [first, second], [(1, 2), ()]).tolist() == [6, 4]


# Leaves of classes that are rare


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_python_integers_that_are_not_differentiated(executor: str) -> None:
    # `jax.vjp`, and `jax.grad` with `allow_int`, hand them over as a class of JAX's own.
    embed = jnp.arange(10.0)

    def look_up(embed: Any, tree: Any) -> Any:
        return sum(look_up(embed, t) for t in tree) if isinstance(tree, tuple) else 2.0 * embed[tree] * tree

    batched = jitbatch(look_up, executor=executor)
    trees = [(1, (2, 3)), 4, ((5, 6), (7, 8))]

    def loop(embed: Any, trees: Any) -> Any:
        return jnp.stack([look_up(embed, tree) for tree in trees])

    weights = jnp.arange(1.0, 4.0)
    expected, pull = jax.vjp(loop, embed, trees)
    values, pull_batch = jax.vjp(batched.batch, embed, trees)
    np.testing.assert_allclose(values, expected)
    for got, wanted in zip(jax.tree.leaves(pull_batch(weights)), jax.tree.leaves(pull(weights)), strict=True):
        assert got.dtype == wanted.dtype
        if got.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(got, wanted)
    through = [
        jax.grad(lambda *args, run=run: weights @ run(*args), argnums=(0, 1), allow_int=True)(embed, trees)
        for run in (loop, batched.batch)
    ]
    np.testing.assert_allclose(through[1][0], through[0][0])
    assert jax.tree.structure(through[1]) == jax.tree.structure(through[0])


def test_a_python_integer_that_is_shared_is_no_part_of_the_program() -> None:
    scaled = jitbatch(lambda scale, x: scale[1] * scale[0] * x)
    for number in range(3):
        value, pull = jax.vjp(scaled.batch, (number, 2.0), [1.0, 3.0])
        np.testing.assert_allclose(value, [2.0 * number, 6.0 * number])
        np.testing.assert_allclose(pull(jnp.ones(2))[0][1], 4.0 * number)
    assert scaled.cache_info()["structures"].misses == 1


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrices_are_arrays_of_two_axes(executor: str) -> None:
    @jitbatch(executor=executor)
    def summed(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(w @ x)) + x.shape[1]

    w = jnp.float32([[1.0, 2.0]])
    samples = [np.matrix([[1.0, 2.0], [3.0, 4.0]]), np.matrix([[5.0], [6.0]]), np.float32([[7.0], [8.0]])]
    expected = [summed(w, x) for x in samples]
    np.testing.assert_allclose(summed.batch(w, samples), expected, rtol=1e-6)
    np.testing.assert_allclose(summed.batch(w, summed.plan(w, samples)), expected, rtol=1e-6)
    assert summed.check(w, samples).samples == 3


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrices_as_parameters_and_as_rows() -> None:
    product = jitbatch(lambda w, x: w @ x)
    w, rows = np.matrix([[1.0, 2.0], [3.0, 4.0]]), np.matrix([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_allclose(product.batch(w, rows), jax.vmap(lambda x: jnp.asarray(w) @ x)(jnp.asarray(rows)))


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        (jax.ShapeDtypeStruct((2,), np.float32), "has no data"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), r"give `x.filled\(...\)`"),
        (np.zeros(2, [("a", "f4")]), "is not an array or a number that JAX computes with"),
        (np.array(["a", "b"]), "with dtype <U1, which is not an array"),
    ],
    ids=["struct", "masked", "fields", "text"],
)
def test_leaves_that_are_nearly_arrays(leaf: Any, told: str) -> None:
    for use in (total.batch, total.plan, total.explain, total.check):
        with pytest.raises(SampleError, match=rf"(?s)sample 1: sample\[1\]\['a'\] is .*{told}"):
            use(2.0, [{"a": X}, {"a": leaf}])


def test_shapes_in_place_of_parameters_are_for_planning() -> None:
    scaled = jitbatch(lambda params, x: params["w"] * x)
    params = {"w": jax.ShapeDtypeStruct((), np.float32)}
    plan = scaled.plan(params, [1.0, 2.0])
    assert scaled.explain(params, [1.0, 2.0]).samples == 2
    for use in (
        lambda: scaled.batch(params, [1.0]),
        lambda: scaled.batch(params, plan),
        lambda: scaled.check(params, [1.0]),
        lambda: scaled.explain(params, plan, measure=True),
    ):
        with pytest.raises(ArgumentError, match=r"the shared argument params\['w'\] is a jax.ShapeDtypeStruct"):
            use()


def shared_part(depth: int, innermost: Any) -> Any:
    part = innermost
    for _ in range(depth):
        part = (part, part)
    return part


@pytest.mark.parametrize("innermost", [1, 0, np.ones(2, np.float32), jnp.ones(2), [1.0], {"a": 2.0}, None, ()])
def test_samples_of_shared_parts_are_refused_before_they_are_walked(
    innermost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure_module, "MOST_PARTS", 100)
    total = jitbatch(lambda scale, tree: scale * 2.0)
    total.plan(1.0, [shared_part(4, innermost)])  # 31 parts, and what is in the innermost ones
    for depth in (7, 200):
        with pytest.raises(SampleError, match=r"sample 1 is a tree of more than 100 parts.*number them"):
            total.plan(1.0, [2.0, shared_part(depth, innermost)])


def levels_left(depth: int = 0) -> int:
    """How many calls Python allows below this one."""
    try:
        return levels_left(depth + 1)
    except RecursionError:
        return depth


@pytest.mark.parametrize("sample", [shared_part(40, 1.0), functools.reduce(lambda part, _: (part,), range(3000), 1.0)])
def test_refused_samples_leave_the_recursion_depth_as_it_was(sample: Any) -> None:
    before = levels_left()
    for _ in range(2):
        with pytest.raises(SampleError, match=r"too deeply|a tree of more than"):
            jitbatch(lambda scale, tree: scale).plan(1.0, [sample])
    assert levels_left() == before


def test_a_structure_of_static_values_is_looked_up_without_comparing_each(monkeypatch: pytest.MonkeyPatch) -> None:
    fun = jitbatch(lambda scale, names: scale * len(names[0].value))
    fun.plan(2.0, [[Static(f"name {i}") for i in range(9)]])
    calls: list[Any] = []
    original = Static.__eq__
    monkeypatch.setattr(Static, "__eq__", lambda self, other: calls.append(self) or original(self, other))
    again = [[Static(f"name {i}") for i in range(9)] for _ in range(3)]
    fun.plan(2.0, again)
    first = len(calls)  # values that are met first are found among those of earlier samples
    assert first <= 3 * 9
    fun.plan(2.0, again)
    assert len(calls) == first
