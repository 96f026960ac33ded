"""The tables of a function: equal things have equal numbers, whoever asks first."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import jitbatch
from jitbatch.ir.tables import Interned, SharedArray, SharedLeaf, SharedResult, Tables, ValueClass


def test_equal_entries_have_one_number() -> None:
    table: Interned[Any] = Interned()
    assert [table.number(entry) for entry in "abcab"] == [0, 1, 2, 0, 1]
    assert [table.number(object(), key) for key in "xyx"] == [3, 4, 3]
    assert table[1] == "b"
    assert len(table) == 5


def test_threads_agree_on_numbers() -> None:
    tables = Tables()
    barrier = threading.Barrier(4)
    numbers: list[list[int]] = []

    def intern() -> None:
        barrier.wait()
        numbers.append([tables.share(SharedLeaf(i), jax.typeof(jnp.ones(i % 7))) for i in range(300)])

    threads = [threading.Thread(target=intern) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == numbers[0] for one in numbers)
    assert len(tables.shared) == len(tables.shared_class) == 300
    for number, entry in enumerate(tables.shared.entries):
        assert isinstance(entry, SharedLeaf)
        assert tables.classes[tables.shared_class[number]].shape == (entry.index % 7,)


def test_constants_are_shared_by_bits_and_weak_type() -> None:
    tables = Tables()

    def number(value: Any) -> int:
        return tables.share(SharedArray(value), jax.typeof(value))

    distinct = [np.float32(0.0), np.float32(-0.0), np.float32([0.0]), np.int32(0), 0.0, 0, False, jax.random.key(0)]
    assert [number(value) for value in distinct] == list(range(len(distinct)))
    assert number(jnp.float32(0.0)) == 0
    assert number(np.zeros(3, np.float32)) == number(jnp.zeros(3))


def test_tracers_are_shared_by_identity() -> None:
    tables = Tables()

    @jax.jit
    def numbers(x: Any, y: Any) -> Any:
        aval = jax.typeof(x)
        assert [tables.share(SharedArray(value), aval) for value in (x, y, x)] == [0, 1, 0]
        return x

    numbers(1.0, 1.0)


def test_classes_are_shapes_and_dtypes() -> None:
    tables = Tables()
    weak = jax.typeof(1.0)
    assert tables.class_of(weak) == tables.class_of(jax.typeof(jnp.float32(1)))
    assert tables.class_of(weak) != tables.class_of(jax.typeof(jnp.int32(1)))
    key = jax.typeof(jax.random.key(0))
    assert tables.classes[tables.class_of(key)].is_key
    assert str(ValueClass((2, 3), np.dtype("float32"))) == "float32[2, 3]"
    assert str(ValueClass((), key.dtype)) == "key<fry>[]"


def test_traced_values_are_told_apart_where_shared_values_are_ordered() -> None:
    """Also those that a shared result is made of."""
    tables = Tables()
    scaled = jitbatch(lambda w, x: w * x)
    scaled.plan(2.0, [1.0])
    (context,) = scaled._planner.contexts
    cell = context.tables.kinds[0].cell

    def trace(x: Any, y: Any) -> Any:
        numbers = [tables.share(SharedArray(value), value.aval) for value in (x, y)]
        results = [tables.share(SharedResult(cell, (number, number), 0), x.aval) for number in numbers]
        orders = [tables.shared_order(number) for number in (*results, *numbers)]
        assert len(set(orders)) == 4
        return x

    jax.make_jaxpr(trace)(1.0, 1.0)


def test_constants_are_what_they_were_when_they_were_recorded() -> None:
    """A NumPy array that is closed over may change; another that is as it was is the same shared value."""
    held = np.ones(2, np.float32)

    @jitbatch(executor="dispatch")
    def scaled(w: Any, xs: list[Any]) -> Any:
        return sum(xs) * held * w

    @jitbatch(executor="dispatch")
    def scaled_by_ones(w: Any, xs: list[Any]) -> Any:
        return sum(xs) * (held if len(xs) == 1 else np.ones(2, np.float32)) * w

    for fun in (scaled, scaled_by_ones):
        held[:] = 1
        assert fun.batch(3.0, [[1.0]]).tolist() == [[3.0, 3.0]]
        held[:] = 5
        assert fun.batch(3.0, [[1.0]]).tolist() == [[3.0, 3.0]]  # as `jax.jit` does
        more = fun.batch(3.0, [[1.0, 1.0]]).tolist()
        assert more == [[30.0, 30.0]] if fun is scaled else [[6.0, 6.0]]


def test_a_number_has_its_entry_as_soon_as_it_is_known() -> None:
    table: Interned[Any] = Interned()

    class Slow(list[Any]):
        """Notes whether a number is known before its entry is there."""

        def append(self, entry: Any) -> None:
            assert entry not in table
            super().append(entry)

    table.entries = Slow()
    assert [table.number(entry) for entry in "aba"] == [0, 1, 0]
    assert "b" in table
    assert "c" not in table
