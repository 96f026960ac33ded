"""Tables in one buffer: packed, unpacked on the host and inside a program, and stacked as shards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch.util.packed import Packed, pack

TABLES: Any = {
    "operands": (np.arange(6, dtype=np.int32).reshape(2, 3), None, {"terms": np.zeros((0,), np.int32)}),
    "total": np.int32(7).reshape(()),
}


def assert_equal(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), got, want)


def test_unpacking_gives_what_was_packed() -> None:
    packed = pack(TABLES)
    assert len(jax.tree.leaves(packed)) == 1
    assert packed.buffer.shape == (7,)
    assert_equal(packed.unpack(), TABLES)


def test_unpacked_tables_of_a_numpy_buffer_are_views() -> None:
    packed = pack(TABLES)
    assert np.shares_memory(packed.unpack()["operands"][0], packed.buffer)


def test_a_program_takes_one_argument_for_all_tables() -> None:
    @jax.jit
    def total(packed: Packed) -> Any:
        tables = packed.unpack()
        return tables["operands"][0].sum() + tables["total"], len(jax.tree.leaves(tables))

    assert int(total(pack(TABLES))[0]) == 22
    assert len(total.lower(pack(TABLES)).in_avals[0]) == 1


def test_shards_are_stacked_and_unpacked_together() -> None:
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), pack(TABLES), pack(TABLES))
    assert stacked.unpack()["operands"][0].shape == (2, 2, 3)
    again = pack(stacked.unpack(), shards=(2,))
    assert again.layout == stacked.layout
    np.testing.assert_array_equal(again.buffer, stacked.buffer)
    assert_equal(jax.tree.map(lambda leaf: leaf[1], stacked).unpack(), TABLES)


def test_nothing_is_packed_too() -> None:
    assert pack(()).unpack() == ()
    assert pack(()).buffer.shape == (0,)
    assert pack((), shards=(2,)).buffer.shape == (2, 0)


def test_other_tables_are_another_tree() -> None:
    other = pack({"total": np.zeros(7, np.int32)})
    assert jax.tree.structure(pack(TABLES)) != jax.tree.structure(other)


def test_tables_are_int32() -> None:
    with pytest.raises(AssertionError, match="tables are int32"):
        pack({"total": jnp.float32(1.0)})
