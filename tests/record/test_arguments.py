"""Arguments of `.batch`: which are shared, which are mapped, and what each sample gets."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.record.arguments import Part, samples_of, shared_arguments, take_apart
from jitbatch.util.errors import ArgumentError


def apart(fun: Callable[..., Any], in_axes: Any, *args: Any, is_method: bool = False, **kwargs: Any) -> Any:
    return take_apart(inspect.signature(fun), in_axes, is_method, args, kwargs)


def axes(fun: Callable[..., Any], in_axes: Any, *args: Any, **options: Any) -> dict[str, Any]:
    return {part.name: part.axis for part in apart(fun, in_axes, *args, **options).parts}


def three(a: Any, b: Any, c: Any = None) -> Any: ...


def any_number(a: Any, *rest: Any) -> Any: ...


def named(a: Any, *, b: Any, c: Any = 0) -> Any: ...


def test_the_first_argument_is_shared_by_default() -> None:
    assert axes(three, None, 1, 2, 3) == {"a": None, "b": 0, "c": 0}
    assert axes(three, None, 1, 2) == {"a": None, "b": 0}
    assert axes(any_number, None, 1, 2, 3) == {"a": None, "rest[0]": 0, "rest[1]": 0}
    assert axes(named, None, 1, b=2) == {"a": None, "b": 0}


def test_axes_as_for_vmap() -> None:
    assert axes(three, (0, None, 1), 1, 2, 3) == {"a": 0, "b": None, "c": 1}
    assert axes(three, 0, 1, 2) == {"a": 0, "b": 0}
    assert axes(three, -1, 1, 2) == {"a": -1, "b": -1}
    assert axes(three, [0, None], 1, 2) == {"a": 0, "b": None}


def test_the_receiver_of_a_method_is_shared_and_has_no_entry() -> None:
    assert axes(three, (0, None), 1, 2, 3, is_method=True) == {"a": None, "b": 0, "c": None}
    assert axes(three, 0, 1, 2, 3, is_method=True) == {"a": None, "b": 0, "c": 0}


def test_trees_of_axes() -> None:
    arguments = apart(three, ({"x": 0, "y": None}, None), {"x": [1, 2], "y": 3}, 4)
    assert arguments.axes == (0, None, None)
    assert arguments.shared == (3, 4)
    assert arguments.rebuild((3, 4), (1,)) == ([{"x": 1, "y": 3}, 4], {})


def test_keywords_are_put_in_their_places() -> None:
    arguments = apart(three, None, b=[1], a="shared", c=[2])
    assert arguments.shared == ("shared",)
    assert arguments.rebuild(("shared",), (1, 2)) == (["shared", 1, 2], {})
    arguments = apart(named, None, "shared", c=[3], b=[2])
    args, kwargs = arguments.rebuild(("shared",), [part.value[0] for part in arguments.mapped])
    assert args == ["shared"]
    assert kwargs == {"b": 2, "c": 3}


def test_the_layout_does_not_depend_on_values() -> None:
    assert apart(three, None, 1, [2]).layout == apart(three, None, 5, [6, 7]).layout
    assert hash(apart(three, None, 1, [2]).layout) == hash(apart(three, None, 5, [6, 7]).layout)
    assert apart(three, None, 1, [2]).layout != apart(three, None, 1, [2], [3]).layout


def test_shared_arguments_of_a_call_with_a_plan() -> None:
    signature = inspect.signature(three)
    assert shared_arguments(signature, None, False, ("shared", "plan"), {}) == ("shared",)
    assert shared_arguments(signature, (0, None, None), False, ("plan", "b", "c"), {}) == ("b", "c")
    with pytest.raises(ArgumentError, match="'a' is partly mapped, so a plan cannot stand in its place"):
        shared_arguments(signature, ((0, None),), False, ("plan",), {})


class Pair(NamedTuple):
    x: Any
    y: Any


def items(value: Any, axis: int = 0) -> list[Any]:
    return [sample for (sample,) in samples_of([Part("xs", axis, value)])]


def test_sequences_are_samples() -> None:
    assert items([1, 2]) == [1, 2]
    assert items(((1, 2), (3, 4))) == [(1, 2), (3, 4)]
    with pytest.warns(UserWarning, match="is a tuple of numbers and tuples"):
        assert items(((1, 2), 3)) == [(1, 2), 3]
    assert items(deque([1, 2])) == [1, 2]
    assert items(range(3)) == [0, 1, 2]
    assert items([Pair(1, 2), Pair(3, 4)]) == [Pair(1, 2), Pair(3, 4)]
    assert items([]) == []


def test_arrays_are_cut_along_their_axis() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for make in (np.asarray, jnp.asarray):
        assert [row.tolist() for row in items(make(array))] == array.tolist()
        assert [row.tolist() for row in items(make(array), 1)] == array.T.tolist()
        assert [row.tolist() for row in items(make(array), -1)] == array.T.tolist()
    assert items(np.zeros((0, 3))) == []


def test_trees_of_arrays_are_cut_leaf_by_leaf() -> None:
    got = items({"a": np.arange(2), "b": Pair(np.arange(4).reshape(2, 2), jnp.arange(2))})
    assert [jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, one)) for one in got] == [
        {"a": 0, "b": Pair([0, 1], 0)},
        {"a": 1, "b": Pair([2, 3], 1)},
    ]
    assert [one.x for one in items(Pair(np.arange(2), np.arange(2)))] == [0, 1]


def test_keys_are_cut_as_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    assert [one.dtype for one in items(keys)] == [keys.dtype] * 3
    assert [jax.random.key_data(one).tolist() for one in items(keys)] == jax.random.key_data(keys).tolist()


@pytest.mark.parametrize("rank", [1, 2])
def test_weak_types_are_those_of_vmap(rank: int) -> None:
    weak = jnp.broadcast_to(jnp.asarray(1.0), (2,) * rank)
    assert weak.weak_type
    half = jnp.ones((), jnp.bfloat16)
    want = jax.vmap(lambda x: x * half)(weak).dtype
    assert jitbatch(lambda half, x: x * half).batch(half, weak).dtype == want == jnp.bfloat16


def test_tracers_are_cut() -> None:
    got = jax.jit(lambda xs: [row * 2 for row in items(xs, 1)])(jnp.arange(6.0).reshape(2, 3))
    assert [row.tolist() for row in got] == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]


def test_samples_are_zipped() -> None:
    parts = [Part("a", 0, [1, 2]), Part("b", 0, np.array([3, 4]))]
    assert samples_of(parts) == [(1, 3), (2, 4)]
    with pytest.raises(ArgumentError, match="one item for each sample, but a has 2, b has 3"):
        samples_of([Part("a", 0, [1, 2]), Part("b", 0, [1, 2, 3])])


def test_lengths_of_parts_with_one_name_are_compared_too() -> None:
    with pytest.raises(ArgumentError, match="one item for each sample"):
        samples_of([Part("a", 0, [1, 2]), Part("a", 0, [1, 2, 3])])


def test_the_arrays_of_a_tree_have_one_length() -> None:
    with pytest.raises(ArgumentError, match="'xs' have different lengths on axis 0"):
        items({"a": np.arange(2), "b": np.arange(3)})
