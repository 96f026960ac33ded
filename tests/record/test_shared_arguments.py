"""Shared arguments: their array leaves, and what belongs to their key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import Static
from jitbatch.record.shared_arguments import SharedArguments

X = np.float32([1.0, 2.0])


def test_shared_arguments_are_rebuilt_with_what_is_no_array() -> None:
    shared = SharedArguments(({"w": X, "activation": jnp.tanh, "name": "net"}, 2.0))
    assert len(shared.leaves) == 2
    params, number = shared.rebuild(["array", "number"])
    assert params == {"w": "array", "activation": jnp.tanh, "name": "net"}
    assert number == "number"


def test_what_is_no_array_is_part_of_the_key_of_shared_arguments() -> None:
    def shared_key(value: Any) -> Any:
        return SharedArguments(({"w": X, "other": value},)).key

    assert shared_key(jnp.tanh) == shared_key(jnp.tanh)
    assert shared_key(jnp.tanh) != shared_key(jnp.sin)
    assert shared_key("a") != shared_key("b")
    assert shared_key(Static(1)) != shared_key(Static(True))
    assert shared_key(1.0) == shared_key(2.0)
    assert shared_key(jax.ShapeDtypeStruct((2,), jnp.float32)) == shared_key(X)
    unhashable: set[int] = {1}
    assert shared_key(unhashable) == shared_key(unhashable)
    assert shared_key(unhashable) != shared_key({1})
