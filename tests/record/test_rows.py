"""What the values of a recording are: rows with numbers, or shared values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recorder import X, inputs, recording

from jitbatch import jitbatch
from jitbatch.record.rows import BARE, ClosesOverTracer

lax: Any = jax.lax  # whose functions return `Value`s here
XS = np.arange(12, dtype=np.float32).reshape(3, 2, 2)


def test_what_is_given_has_negative_numbers() -> None:
    with recording() as recorder:
        x, xs = inputs(recorder, X, XS)
        assert (x.row, xs.row) == (-1, -2)
        assert xs[1].row == xs[1:][0].row == xs[-2].row == -3
        assert xs[1][1].row == -4
    assert recorder.builder.given == [(0, 0, 0), (1, 0, 0), (1, 1, 1), (1, 2, 3)]


def test_an_element_of_an_alias_is_that_of_the_input() -> None:
    with recording() as recorder:
        (xs,) = inputs(recorder, XS)
        alias = recorder.alias(xs)
        elements = [alias[2], alias[1:][1], alias[2][1], alias[1:][1][1:][0]]
        want = [xs[2], xs[2], xs[2][1], xs[2][1]]
        assert all(value.row >= BARE for value in elements)
        assert [recorder.rows.element_of(value.source) for value in elements] == want
        assert recorder.builder.origin(alias.row) == xs.row
        assert recorder.rows.element_of(lax.sin(xs)[0].source) is None


def test_what_reads_a_row_is_a_row() -> None:
    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        (x,) = inputs(recorder, X)
        assert lax.sin(w).row is None
        assert lax.mul(w, x).row == BARE
        assert lax.sin(lax.mul(w, x)).row == BARE + 2


def test_shared_values_have_one_number_each() -> None:
    with recording() as recorder:
        w, v = inputs(recorder, X, X, shared=True)
        rows = recorder.rows
        assert rows.shared(lax.sin(w)) == rows.shared(lax.sin(w)) != rows.shared(lax.sin(v))
        assert rows.shared(np.float32(1)) == rows.shared(np.float32(1)) != rows.shared(np.float32(2))
        assert rows.form(lax.sin(w)) == rows.form(lax.sin(w)) != rows.form(lax.cos(w))


def test_a_long_chain_of_shared_values_is_no_recursion() -> None:
    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        for _ in range(3000):
            w = lax.sin(w)
        assert recorder.rows.form(w) < 0


def test_a_constant_is_one_row() -> None:
    with recording() as recorder:
        rows = [recorder.builder.constant_row(value) for value in (np.float32(1), np.float32(2), np.float32(1), 1.0)]
    assert rows[0] == rows[2] == rows[3] != rows[1]
    assert len(recorder.builder.constants) == 2


def test_tracers_of_other_transformations_are_not_kept() -> None:
    def loss(w: Any) -> Any:
        with recording() as recorder, pytest.raises(ClosesOverTracer):
            recorder.rows.form(w)
        return w

    jax.grad(loss)(1.0)


def test_constants_that_are_passed_are_one_bucket() -> None:
    cell = jitbatch(lambda w, x, n: w * x + n)
    fun = jitbatch(lambda w, x: cell(w, x, 1.0) + cell(w, x, 2.0))
    plan = fun.plan(jnp.float32(3), [1.0, 2.0])
    assert plan.summary.steps == 2
    np.testing.assert_allclose(fun.batch(jnp.float32(3), plan), [9, 15])
