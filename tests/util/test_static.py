"""Static values are compared by type and bits, and are structure, not leaves."""

from __future__ import annotations

import enum
import operator
import struct
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, jitbatch
from jitbatch.util.static import bits_key, flatten_with_statics

NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


@dataclass(frozen=True)
class Scale:
    by: Any


DIFFER = [
    (1, 1.0),
    (1, True),
    (0, False),
    (1.0, 1 + 0j),
    (0.0, -0.0),
    (0j, complex(0.0, -0.0)),
    (NAN, OTHER_NAN),
    (NAN, 0.0),
    ("a", b"a"),
    (1, Color.RED),
    ((1, 2), (1, 2.0)),
    (((0.0,),), ((-0.0,),)),
    ((1, 2), Point(1, 2)),
    (frozenset({1}), frozenset({1.0})),
    (np.float32(1), np.float64(1)),
    (np.float32(0.0), np.float32(-0.0)),
    (np.int32(1), 1),
    (np.float64(1), 1.0),
    (None, False),
    (operator.add, operator.mul),
    (Scale(1), Scale(2)),
]
EQUAL = [
    (1, 1),
    (NAN, float("nan")),
    ((NAN, 1), (float("nan"), 1)),
    (-0.0, -0.0),
    ("text", "te" + "xt"),
    (Point(1, 2.5), Point(1, 2.5)),
    (frozenset({1, 2}), frozenset({2, 1})),
    (np.float32(NAN), np.float32(NAN)),
    (Scale(2), Scale(2)),
    (Color.RED, Color.RED),
]


@pytest.mark.parametrize(("one", "other"), DIFFER, ids=repr)
def test_different_values(one: Any, other: Any) -> None:
    assert Static(one) != Static(other)
    assert bits_key(one) != bits_key(other)
    assert jax.tree.structure(Static(one)) != jax.tree.structure(Static(other))


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_equal_values(one: Any, other: Any) -> None:
    assert Static(one) == Static(other)
    assert hash(Static(one)) == hash(Static(other))
    assert jax.tree.structure(Static(one)) == jax.tree.structure(Static(other))


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0.0, -0.0)], ids=repr)
def test_values_inside_a_dataclass_are_compared_by_bits_too(one: Any, other: Any) -> None:
    assert Static(Scale(one)) != Static(Scale(other))


def test_a_static_value_is_not_equal_to_what_it_holds() -> None:
    assert Static(1) != 1
    assert Static("a") != "a"


def test_a_static_value_is_structure_and_no_leaf() -> None:
    leaves, treedef = jax.tree.flatten({"op": Static("MAX"), "x": 1.0})
    assert leaves == [1.0]
    assert treedef.unflatten([2.0]) == {"op": Static("MAX"), "x": 2.0}
    assert repr(Static("MAX")) == "Static('MAX')"


def test_statics_are_collected_in_the_order_of_flattening() -> None:
    tree = {"b": Static("b"), "a": (Static("a"), 1.0, [Static("c")])}
    leaves, treedef, statics = flatten_with_statics(tree)
    assert leaves == [1.0]
    assert treedef == jax.tree.structure(tree)
    assert [static.value for static in statics] == ["a", "c", "b"]


def test_nothing_is_collected_outside_or_after_an_error() -> None:
    with pytest.raises(ValueError, match="keys"):
        flatten_with_statics({1: Static(1), "not comparable with 1": Static(2)})
    jax.tree.flatten(Static("elsewhere"))
    assert flatten_with_statics(Static("here"))[2] == (Static("here"),)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1, 2}, ([1],), np.ones(2), jnp.ones(2)], ids=repr)
def test_values_that_cannot_be_hashed_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"jitbatch.Static needs a hashable value.*Turn lists into tuples"):
        Static(value)


def test_python_may_look_at_static_values_in_a_sample() -> None:
    @jitbatch
    def fun(scale: Any, sample: Any) -> Any:
        return scale * sample[1] if sample[0].value == "times" else scale + sample[1]

    assert fun.batch(10.0, [(Static("times"), 2.0), (Static("plus"), 3.0)]).tolist() == [20.0, 13.0]
