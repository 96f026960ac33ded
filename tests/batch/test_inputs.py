"""Input rows: one array a class, equal rows once, and every input finds its row again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.batch.analysis import Analysis, analyse
from jitbatch.batch.inputs import PackedInputs, pad_rows
from jitbatch.plan import make

XS = np.float32([[1, 2], [3, 4], [1, 2]])


def packed(fun: Any, samples: list[Any], dedupe: bool = True) -> tuple[PackedInputs, list[Any]]:
    """The packed inputs of a batch, and the row of each input, looked up."""
    noted: list[Analysis] = []

    def noting(*args: Any) -> Analysis:
        noted.append(analyse(*args))
        return noted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "analyse", noting)
        jitbatch(fun, out="list", dedupe=dedupe).batch(None, samples)
    (found,) = noted
    rows = zip(found.batch.given_class.tolist(), found.batch.value_row.tolist(), strict=True)
    return found.packed, [found.packed.rows[c][row] for c, row in rows if c >= 0]


def same(_: Any, sample: Any) -> Any:
    return sample


def rows_of(_: Any, xs: Any) -> Any:
    return list(xs)


def test_equal_rows_are_packed_once() -> None:
    result, rows = packed(rows_of, [XS, XS[1:]])
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]]
    assert result.counts.sum() == 2
    (array,) = result.rows.values()
    assert array.tolist() == [[1, 2], [3, 4]]


def test_rows_are_kept_apart_on_request() -> None:
    result, rows = packed(rows_of, [XS, XS[1:]], dedupe=False)
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]]
    assert result.counts.sum() == 5


def test_bits_decide_what_is_equal() -> None:
    nan = np.float32(np.nan)
    _, rows = packed(same, [np.float32(0.0), np.float32(-0.0), nan, nan])
    assert np.signbit(rows[:2]).tolist() == [False, True]
    result, _ = packed(same, [np.float32(0.0), np.float32(-0.0), nan, nan])
    assert result.counts.sum() == 3


def test_numbers_and_arrays_of_one_class_lie_together() -> None:
    result, rows = packed(same, [{"a": 1.5, "b": np.float32(2), "c": jnp.float32(1.5)}])
    assert [float(row) for row in rows] == [1.5, 2, 1.5]
    assert len(result.rows) == 1
    assert result.counts.sum() == 2


def test_each_class_has_its_array() -> None:
    result, rows = packed(same, [(1, 1.0, True, np.float16(1), XS[0])])
    assert sorted(str(array.dtype) for array in result.rows.values()) == [
        "bool", "float16", "float32", "float32", "int32",
    ]  # fmt: skip
    assert [np.asarray(row).tolist() for row in rows] == [1, 1.0, True, 1.0, [1, 2]]


def test_a_leaf_at_two_depths_is_packed_for_each() -> None:
    _, rows = packed(lambda _, xs: (xs, xs[1], xs[2, 0]), [XS])
    assert [np.asarray(row).tolist() for row in rows] == [XS.tolist(), [3, 4], 1]


def test_keys_are_packed_as_keys() -> None:
    keys = [jax.random.key(seed) for seed in (0, 1, 0)]
    result, rows = packed(same, keys)
    assert result.counts.sum() == 2
    assert [jax.random.key_data(row).tolist() for row in rows] == [jax.random.key_data(key).tolist() for key in keys]


def test_keys_of_another_kind_stay_what_they_are() -> None:
    key = jax.random.key(3, impl="rbg")
    got = jitbatch(same).batch(None, [key, key])
    assert got.dtype == key.dtype
    assert jax.random.key_data(got[1]).tolist() == jax.random.key_data(key).tolist()


def test_tracers_are_not_compared() -> None:
    def double(x: Any) -> Any:
        result, rows = packed(same, [x, XS[0], x])
        assert result.counts.sum() == 3
        return jnp.stack(rows) * 2

    got = jax.jit(double)(XS[1])
    assert got.tolist() == [[6, 8], [2, 4], [6, 8]]


def test_traced_keys_are_not_compared() -> None:
    noise = jitbatch(lambda w, key: w * jax.random.normal(key, (2,)))
    keys = list(jax.random.split(jax.random.key(0), 2))
    keys.append(keys[0])
    want = jnp.stack([noise(2.0, key) for key in keys])
    np.testing.assert_array_equal(jax.jit(noise.batch)(2.0, keys), want)


def test_the_plan_of_arrays_on_the_host_stays_on_the_host() -> None:
    made = jitbatch(same).plan(None, [XS])
    assert all(isinstance(rows, np.ndarray) for rows in made.inputs if rows is not None)


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["host", "device"])
def test_padding(make: Any) -> None:
    padded = pad_rows(make(XS), 4)
    assert padded.tolist() == [*XS.tolist(), [0, 0]]
    assert padded.dtype == XS.dtype
    assert pad_rows(padded, 4) is padded
    assert pad_rows(None, 4) is None


def test_keys_are_padded_with_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    got = pad_rows(keys, 4)
    assert got.dtype == keys.dtype
    assert jax.random.key_data(got)[:3].tolist() == jax.random.key_data(keys).tolist()


@pytest.mark.parametrize("traced", [False, True])
def test_empty_arrays_are_inputs_as_any(traced: bool) -> None:
    batched = jitbatch(lambda _, xs: jnp.sum(xs, 0))
    samples = [np.zeros((0, 2), np.float32), XS]
    run = jax.jit(lambda samples: batched.batch(None, samples)) if traced else lambda s: batched.batch(None, s)
    assert run(samples).tolist() == [[0, 0], [5, 8]]
