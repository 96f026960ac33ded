"""Shared arguments like those of an earlier call have its key, and their own values and order of keys."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.record import known_shared
from jitbatch.record.known_shared import KnownShared
from jitbatch.record.shared_arguments import SharedArguments

W = jnp.ones((2, 2))


def params(**changed: Any) -> Any:
    return ({"w": W, "layers": [{"b": W[0], "a": W[1]}], "scale": jnp.float32(2), **changed},)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments whose key was made from the beginning."""
    found: list[Any] = []

    def make(shared: Any) -> SharedArguments:
        found.append(shared)
        return SharedArguments(shared)

    monkeypatch.setattr(known_shared, "SharedArguments", make)
    return found


def agree(known: SharedArguments, shared: Any) -> None:
    wanted = SharedArguments(shared)
    assert known.key == wanted.key
    assert known.described == wanted.described
    assert known.orders == wanted.orders
    assert known.part_types == wanted.part_types
    assert known.leaves == wanted.leaves
    assert known.split(known.leaves) == wanted.split(wanted.leaves)
    rebuilt, original = known.rebuild(known.leaves)[0], wanted.rebuild(wanted.leaves)[0]
    assert list(rebuilt) == list(original)
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, rebuilt, original))


def test_the_key_is_made_once_for_parameters_of_a_step(made: list[Any]) -> None:
    known, shared = KnownShared(), params()
    step = jax.jit(lambda shared: jax.tree.map(lambda x: 2 * x, shared))
    keys = []
    for _ in range(4):
        shared = step(shared)
        found = known.of(shared)
        agree(found, shared)
        keys.append(found.key)
    assert len(made) == 1
    assert all(key is keys[0] for key in keys)


@pytest.mark.parametrize(
    "other",
    [
        params(w=jnp.ones((2, 3))),
        params(w=jnp.ones((2, 2), jnp.int32)),
        params(scale=jnp.asarray(2.0)),  # weakly typed
        params(scale=2.0),
        params(w=np.ones((2, 2), np.float32)),
        params(extra=W),
        params(layers=[{"a": W[1], "b": W[0]}]),  # another order of keys
        params(layers=({"b": W[0], "a": W[1]},)),
        params(activation=jnp.tanh),
        params(mode=Static(1)),
        params(mode=Static(True)),
    ],
)
def test_other_arguments_are_as_without_a_known_one(other: Any) -> None:
    known = KnownShared()
    for shared in (params(), other, params(), other):
        agree(known.of(shared), shared)


def test_the_order_of_keys_in_other_classes_is_looked_up() -> None:
    from flax.core import FrozenDict

    known = KnownShared()
    for keys in ("ab", "ba", "ab"):
        shared = (FrozenDict(dict.fromkeys(keys, W)),)
        agree(known.of(shared), shared)


def test_no_parameter_is_kept() -> None:
    known, shared = KnownShared(), params(w=jnp.ones((3, 3)))
    gone = weakref.ref(shared[0]["w"])
    known.of(shared)
    known.of(shared)
    del shared
    gc.collect()
    assert gone() is None


def test_cleared_caches_forget_known_arguments(made: list[Any]) -> None:
    fun = jitbatch(lambda scale, x: scale * x)
    for _ in range(2):
        fun.plan(jnp.float32(2), [1.0, 2.0])
    assert len(made) == 1
    clear_caches()
    fun.plan(jnp.float32(2), [1.0, 2.0])
    assert len(made) == 2
