"""Structures: what makes a sample another program, and which samples are taken apart once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, clear_caches, jitbatch
from jitbatch._errors import SampleError
from jitbatch._structure import MOST_BYTES, Structure, cannot_change, describe_leaf

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
    with pytest.raises(SampleError, match=r"sample 3: tree\[3\]\['a'\]\[1\] is 'text' of type str"):
        Structure(sample, 3, ["x", "tree"])


def test_descriptions_of_leaves() -> None:
    assert describe_leaf(1) is int
    assert describe_leaf(True) is bool
    assert describe_leaf("text") is None
    assert describe_leaf(X) == describe_leaf(jnp.asarray(X)) == ((2,), np.dtype("float32"), False)


# Samples that are taken apart once


class Leaf(NamedTuple):
    number: float
    array: Any


class Own(NamedTuple):
    """A named tuple that is taken apart in a way of its own."""

    number: float


jax.tree_util.register_pytree_node(Own, lambda own: ((own.number + 1,), None), lambda _, items: Own(*items))


@pytest.mark.parametrize(
    "sample",
    [1, (1, 2.0, True), (None, Static("a"), ()), Leaf(1, X), ((Leaf(1, (2, Leaf(3, X))),),), np.float32(1)],
    ids=repr,
)
def test_samples_that_cannot_change(sample: Any) -> None:
    assert cannot_change((sample,))


@pytest.mark.parametrize(
    "sample", [[1], {"a": 1}, (1, [2]), Own(1), (Leaf(1, Own(2)),), jnp.ones(2), np.zeros(MOST_BYTES)], ids=type
)
def test_samples_that_may_change_or_are_large(sample: Any) -> None:
    assert not cannot_change((sample,))


@jitbatch
def total(scale: Any, sample: Any) -> Any:
    return scale * sum(jnp.sum(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(sample))


def totals(samples: list[Any]) -> list[float]:
    return np.asarray(total.batch(2.0, samples)).tolist()


def test_a_sample_that_cannot_change_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Leaf(float(i), X + i) for i in range(3)]
    expected = [2 * (i + 3 + 2 * i) for i in range(3)]
    assert totals(samples) == expected
    made = []
    monkeypatch.setattr(Structure, "__init__", lambda *args: made.append(args))
    assert totals(samples[::-1]) == expected[::-1]
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


def test_a_list_may_change() -> None:
    sample = (1.0, [2.0])
    assert totals([sample]) == [6]
    sample[1].append(3.0)
    assert totals([sample]) == [12]


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
