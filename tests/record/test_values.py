"""Rows of inputs: indexing with Python integers is plain JAX's, and refers to rows whatever the array's length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import Static, jitbatch
from jitbatch.record.values import within
from jitbatch.util.array_leaves import is_array

XS = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

INDEXING: dict[str, Callable[[Any], Any]] = {
    "int": lambda xs: xs[1],
    "negative": lambda xs: xs[-1],
    "numpy integer": lambda xs: xs[np.int64(2)],
    "out of range": lambda xs: xs[7],
    "negative out of range": lambda xs: xs[-9],
    "slice": lambda xs: xs[1:3],
    "open slice": lambda xs: xs[2:],
    "negative slice": lambda xs: xs[-3:-1],
    "slice out of range": lambda xs: xs[2:99],
    "empty slice": lambda xs: xs[3:1],
    "empty reversed slice": lambda xs: xs[1:3:-1],
    "reversed": lambda xs: xs[::-1],
    "stepped": lambda xs: xs[::2],
    "stepped backwards": lambda xs: xs[2::-2],
    "row of a slice": lambda xs: xs[1:][0],
    "last row of a slice": lambda xs: xs[:3][-1],
    "row of a reversed slice": lambda xs: xs[::-1][1],
    "row out of range of a slice": lambda xs: xs[1:3][5],
    "slice of a slice": lambda xs: xs[1:][1:],
    "stepped slice of a reversed slice": lambda xs: xs[::-1][1::2],
    "row of a slice of a slice": lambda xs: xs[1:][::2][-1],
    "tuple": lambda xs: xs[2, 1],
    "negative tuple": lambda xs: xs[-1, -2],
    "full tuple": lambda xs: xs[1, 2, 0],
    "tuple out of range": lambda xs: xs[1, 9],
    "empty tuple": lambda xs: xs[()],
    "tuple with a slice": lambda xs: xs[1:3, 0],
    "slice in second place": lambda xs: xs[0, 1:],
    "nested": lambda xs: xs[1][2],
    "nested to a scalar": lambda xs: xs[3][0][1],
    "slice of a row": lambda xs: xs[1][1:],
    "row of a slice of a row": lambda xs: xs[2][::-1][0],
    "tuple into a slice": lambda xs: xs[1:][2, 1],
    "iterated": lambda xs: list(xs),
    "iterated backwards": lambda xs: list(reversed(xs)),
    "iterated twice": lambda xs: [x for row in xs for x in row],
    "unpacked": lambda xs: (lambda first, *rest: (first, rest[-1]))(*xs),
    "ellipsis": lambda xs: xs[..., 0],
    "new axis": lambda xs: xs[None],
    "list in a tuple": lambda xs: xs[([0, 2],)],
    "array": lambda xs: xs[jnp.array([2, 0])],
    "boolean mask": lambda xs: xs[np.array([True, False, True, False])],
    "True": lambda xs: xs[True],
    "traced index": lambda xs: xs[jnp.argmax(xs[0, 0])],
    "traced negative index": lambda xs: xs[-1 - jnp.argmax(xs[0, 0])],
    "traced index out of range": lambda xs: xs[9 + jnp.argmax(xs[0, 0])],
    "traced unsigned index": lambda xs: xs[jnp.argmax(xs[0, 0]).astype(jnp.uint8)],
    "traced indices": lambda xs: xs[jnp.argsort(-xs[:3, 0, 0])],
    "traced indices out of range": lambda xs: xs[jnp.argsort(-xs[:3, 0, 0]) * 3 - 2],
    "traced index in a tuple": lambda xs: xs[jnp.argmax(xs[0, 0]), 1],
    "constant array at a traced index": lambda xs: jnp.asarray(XS)[jnp.argmax(xs[0, 0])],
    "after arithmetic": lambda xs: (xs + 1.0)[1],
    "slice after arithmetic": lambda xs: (xs + 1.0)[::-1][:2],
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_is_plain_jaxs(name: str) -> None:
    samples = [XS, XS + 100]
    got = jitbatch(lambda _, xs: INDEXING[name](xs)).batch(None, samples)
    want = jax.tree.map(lambda *leaves: np.stack(leaves), *[INDEXING[name](jnp.asarray(xs)) for xs in samples])
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other, strict=True), got, want)


@pytest.mark.parametrize(
    "index",
    [lambda xs: xs[[0, 1]], lambda xs: xs[0, 0, 0, 0], lambda xs: xs["a"], lambda xs: xs[1.5], lambda xs: xs[::0]],
    ids=["list", "too many", "text", "float", "step of zero"],
)
def test_what_jax_refuses_is_refused_as_jax_does(index: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception, match=r".") as plain:
        index(jnp.asarray(XS))
    with pytest.raises(type(plain.value)):
        jitbatch(lambda _, xs: index(xs)).batch(None, [XS])


ARITHMETIC: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, n: x + n, lambda x, n: n + x, lambda x, n: x - n, lambda x, n: n - x,
    lambda x, n: x * n, lambda x, n: n * x, lambda x, n: x / n, lambda x, n: n / x,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.uint8, None], ids=str)
@pytest.mark.parametrize("number", [3, 0, -7, 0.1, -0.0, np.inf, np.nan, True, 2049], ids=repr)
def test_arithmetic_with_numbers_is_plain_jaxs(number: Any, dtype: Any) -> None:
    """Values, their types, and whether these are weak, as those of Python's numbers are (`None`)."""

    def every(_: Any, x: Any) -> Any:
        return [operation(x, number) for operation in ARITHMETIC]

    weak: list[bool] = []

    def noted(_: Any, x: Any) -> Any:
        made = every(_, x)
        weak.extend(one.weak_type for one in made)
        return made

    samples: list[Any] = [2.5, -3.0] if dtype is None else list(np.asarray([[2.5, 7], [1, 0]]).astype(dtype))
    want = [every(None, jnp.asarray(x)) for x in samples]  # uncompiled: XLA divides by a constant by multiplying
    got = jitbatch(noted, granularity="op").batch(None, samples)
    assert weak == [one.weak_type for one in want[0]]
    for one, *others in zip(got, *want, strict=True):
        assert {one.dtype} == {other.dtype for other in others}
        np.testing.assert_array_equal(np.float64(one), np.float64(others), strict=True)  # bfloat16 has no equal NaNs


@pytest.mark.parametrize("granularity", ["op", "subgraph"])
def test_gradients_of_arithmetic_with_numbers(granularity: Any) -> None:
    def fun(w: Any, x: Any) -> Any:
        return sum((operation(w * x, 2) for operation in ARITHMETIC), 0.0).sum()

    samples = [np.float32([1, 2]), np.float32([3, 4])]
    got = jax.grad(lambda w: jitbatch(fun, granularity=granularity).batch(w, samples).sum())(jnp.float32(0.7))
    want = jax.grad(lambda w: sum(fun(w, x) for x in samples))(jnp.float32(0.7))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_number_that_is_another_one_by_way_of_float32() -> None:
    number, x = 1 + 2**-11 + 2**-30, np.float16(0)
    assert np.float16(number) != np.float16(np.float32(number)) == jnp.asarray(x) + number
    assert jitbatch(lambda _, x: x + number).batch(None, [x])[0] == jnp.asarray(x) + number


def test_a_number_that_jax_refuses_is_refused() -> None:
    with pytest.raises(OverflowError):
        jitbatch(lambda _, x: x + 2**31).batch(None, [np.float32(1)])


def test_a_scalar_is_not_iterated() -> None:
    with pytest.raises(TypeError, match="a number, a traced float32\\[\\], was iterated over"):
        jitbatch(lambda _, x: list(x)).batch(None, [1.0])


@jitbatch
def add(h: Any, x: Any) -> Any:
    return jnp.sin(h) + x


def forwards(h: Any, xs: Any) -> Any:
    for x in xs:
        h = add(h, x)
    return h


WALKS: dict[str, Callable[[Any, Any], Any]] = {
    "forwards": forwards,
    "backwards": lambda h, xs: forwards(h, reversed(xs)),
    "reversed slice": lambda h, xs: forwards(h, xs[::-1]),
    "tail": lambda h, xs: forwards(h, xs[1:]),
    "by negative index": lambda h, xs: forwards(h, [xs[-1 - i] for i in range(len(xs))]),
    "every second": lambda h, xs: forwards(h, xs[::2]),
    "tail recursion": lambda h, xs: forwards(h, [xs[i:][0] for i in range(len(xs))]),
}


@pytest.mark.parametrize("walk", WALKS)
def test_buckets_do_not_depend_on_the_arrays_length(walk: str) -> None:
    batched = jitbatch(WALKS[walk])
    samples = [np.random.default_rng(length).normal(size=(length, 2)).astype("f4") for length in (2, 3, 5, 8)]
    summary = batched.plan(jnp.ones(2), samples).summary
    assert summary.types == 1
    assert summary.steps == summary.levels
    want = jnp.stack([WALKS[walk](jnp.ones(2), jnp.asarray(xs)) for xs in samples])
    np.testing.assert_allclose(batched.batch(jnp.ones(2), samples), want, rtol=1e-5)


def test_rows_of_matrices_do_not_depend_on_either_length() -> None:
    def fun(h: Any, xs: Any) -> Any:
        for i in range(xs.shape[0]):
            for j in range(xs.shape[1]):
                h = add(h, xs[i, j])
        return h

    samples = [np.random.default_rng(0).normal(size=(*shape, 2)).astype("f4") for shape in ((2, 3), (4, 1), (1, 5))]
    batched = jitbatch(fun)
    assert batched.plan(jnp.ones(2), samples).summary.types == 1
    want = jnp.stack([fun(jnp.ones(2), jnp.asarray(xs)) for xs in samples])
    np.testing.assert_allclose(batched.batch(jnp.ones(2), samples), want, rtol=1e-5)


ranges = st.slices(8).map(lambda index: range(8)[index])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(ranges, st.data())
def test_an_index_within_a_slice_is_an_index_of_what_was_sliced(rows: range, data: Any) -> None:
    letters = "abcdefgh"
    sliced = [letters[i] for i in rows]
    inner = range(len(rows))[data.draw(st.slices(len(rows)))]
    composed = within(rows, inner)
    assert isinstance(composed, range)
    assert [letters[i] for i in composed] == [sliced[i] for i in inner]
    for i in range(len(rows)):
        assert letters[within(rows, i)] == sliced[i]


def test_what_counts_as_an_array() -> None:
    arrays = [1, 1.5, True, 2j, np.float32(1), np.ones(2), jnp.ones(2), jnp.bfloat16(1), np.zeros(2, jnp.bfloat16)]
    assert all(map(is_array, [*arrays, jax.random.key(0)]))
    others = ["text", b"bytes", None, print, Static(1), np.array(["text"]), np.array([None]), np.datetime64("2020")]
    assert not any(map(is_array, others))
