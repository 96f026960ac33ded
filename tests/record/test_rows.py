"""What the values of a recording are: rows with numbers, or shared values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recorder import X, inputs, recording

from jitbatch import Static, jitbatch
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


CONSTANTS = {
    "int": int,
    "float": float,
    "NumPy": lambda count: np.full((2, 3), count, np.float32),
    "JAX": jnp.asarray,
}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_results_with_different_constants_have_one_program(constant: str) -> None:
    def fun(w: Any, sample: Any) -> Any:
        return {"count": CONSTANTS[constant](sample[0].value), "sine": jnp.sin(w * sample[1])}

    f = jitbatch(fun, executor="fused")
    samples = [(Static(count), 0.5) for count in range(1, 9)]
    like = f.plan(2.0, samples[:4])
    for chosen in (samples[:4], samples[4:]):
        plan = f.plan(2.0, chosen, like=like)
        assert plan.static is like.static
        got, wanted = f.batch(2.0, plan), [fun(2.0, sample) for sample in chosen]
        for name in ("count", "sine"):
            np.testing.assert_allclose(got[name], np.stack([result[name] for result in wanted]), rtol=1e-6)
            assert got[name].dtype == jnp.asarray(wanted[0][name]).dtype


WORDS = {word: place for place, word in enumerate(["the", "cat", "sat", "on", "a", "mat"])}


def look_up(params: Any, sample: Any) -> Any:
    vectors = [params["embed"][WORDS[word.value]] * params["scale"][WORDS[word.value] % 3] for word in sample]
    return jnp.tanh(sum(vectors) @ params["weights"][len(sample) % 2]).sum()


def test_look_ups_of_different_words_are_one_type() -> None:
    """The words of a sample that only Python sees: a dictionary of its own gives the indices."""
    params = {
        "embed": jax.random.normal(jax.random.key(0), (6, 4)),
        "scale": jnp.array([1.0, 2.0, 3.0]),
        "weights": jax.random.normal(jax.random.key(1), (2, 4, 4)),
    }
    samples = [tuple(map(Static, words.split())) for words in ("the cat", "a mat", "on a", "the cat sat on the mat")]
    f = jitbatch(look_up, executor="fused")
    like = f.plan(params, samples[:2], like=None)
    assert f.plan(params, samples[1:3], like=like).static is like.static
    values, gradients = jax.value_and_grad(lambda p: f.batch(p, samples).sum())(params)
    wanted, by_loop = jax.value_and_grad(lambda p: sum(look_up(p, sample) for sample in samples))(params)
    np.testing.assert_allclose(values, wanted, rtol=1e-5)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6), gradients, by_loop
    )


def test_a_fixed_index_and_a_matrix_of_a_stack_are_shared() -> None:
    with recording() as recorder:
        (stack, table) = inputs(recorder, XS, X, shared=True)
        place = 1
        assert stack[place].row is None
        assert table[0].row is None
        assert table[place].row is not None
