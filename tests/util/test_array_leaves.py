"""Which leaves JAX computes with, and how others are named in messages."""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch.util.array_leaves import described, is_array, plain_aval


class Colour(enum.IntEnum):
    RED = 1


LEAVES: list[tuple[Any, bool]] = [
    (1, True),
    (1.5, True),
    (True, True),
    (1j, True),
    (np.float64(1), True),
    (np.zeros(2, np.int8), True),
    (jnp.ones(2, jnp.bfloat16), True),
    (np.zeros(2, jnp.bfloat16), True),
    (jax.random.key(0), True),
    (Colour.RED, False),
    ("text", False),
    (None, False),
    (np.array(["text"]), False),
    (np.array([None]), False),
    (np.array(["2020-01-01"], "datetime64[D]"), False),
    (np.ma.masked_array([1.0, 2.0], [True, False]), False),
]


@pytest.mark.parametrize(("leaf", "wanted"), LEAVES, ids=[repr(leaf) for leaf, _ in LEAVES])
def test_what_is_an_array(leaf: Any, wanted: bool) -> None:
    assert is_array(leaf) is wanted


def test_tracers_are_arrays() -> None:
    assert jax.jit(lambda x: x * is_array(x))(2.0) == 2.0


def test_a_description_is_short_and_the_same_in_every_process() -> None:
    assert described(object()) == "<object object>"
    text = described("long" * 100)
    assert len(text) == 200
    assert text.endswith("...")


def test_an_aval_has_shape_dtype_and_weak_type() -> None:
    number, array = plain_aval(2.0), plain_aval(np.zeros((2, 3), np.int8))
    assert (number.shape, number.dtype, number.weak_type) == ((), jnp.float32, True)
    assert (array.shape, array.dtype, array.weak_type) == ((2, 3), jnp.int8, False)
