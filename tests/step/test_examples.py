"""Examples of samples, for a process that has none."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch as jb
from jitbatch import jitbatch
from jitbatch.step.examples import first_row, first_samples, is_empty, samples_of
from jitbatch.step.places import Place


class Nothing(NamedTuple):
    """An argument without leaves, such as a state of an optimizer."""


@pytest.mark.parametrize("value", [[], (), np.zeros((0, 3)), {"a": np.zeros(0), "b": np.zeros((0, 2))}])
def test_arguments_without_rows_are_empty(value: Any) -> None:
    assert is_empty(value)


@pytest.mark.parametrize("value", [[1], "", 0.0, None, {}, Nothing(), np.zeros(()), {"a": np.zeros(0), "b": 1.0}])
def test_other_arguments_are_not(value: Any) -> None:
    assert not is_empty(value)


def test_there_is_always_a_first_row() -> None:
    rows = first_row({"a": np.zeros((0, 3), np.int8), "b": np.arange(4.0)})
    assert jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), rows) == {
        "a": ((1, 3), "int8"), "b": ((1,), "float64"),
    }  # fmt: skip


def test_an_example_has_the_structure_of_a_sample_and_other_data() -> None:
    total = jitbatch(lambda scale, tree, key: scale * tree["x"][0] + jax.random.uniform(key))
    step = jb.jit(lambda scale, trees, keys: total.batch(scale, trees, keys))
    trees, keys = [{"x": (np.float32(2), np.int32(7))}], list(jax.random.split(jax.random.key(0), 1))
    step(jnp.float32(1), trees, keys)
    arrangement = step._arrangements.newest
    assert arrangement is not None
    given = {Place("trees"): trees, Place("keys"): keys}
    found = samples_of(first_samples(arrangement.uses, given))
    ((tree,), (key,)) = found[Place("trees")], found[Place("keys")]
    assert jax.tree.map(float, tree) == {"x": (1.0, 0.0)}
    assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
