"""Cells cut where shared operands meet rows: nothing that is computed changes, and no gradient is lost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same

from jitbatch.execute.weight_uses import CutCell, cut_cell, is_float
from jitbatch.ir.cell import intern_cell

ROWS = 5
N = 3


@jax.custom_vjp
def scaled_gradient(x: Any, w: Any) -> Any:
    return jnp.sin(x * w)


scaled_gradient.defvjp(lambda x, w: (jnp.sin(x * w), (x, w)), lambda res, g: (2 * g * res[1], 3 * g * res[0]))


def lstm(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    gates = jnp.tanh(x @ w + h @ u + b)
    return gates * h, gates


def two_layers(x: Any, w: Any, u: Any, b: Any) -> Any:
    return jnp.sin(jnp.tanh(x @ w + b) @ u)


def integer_rows(i: Any, x: Any, table: Any) -> Any:
    return table[i] * x, i + 1


CELLS: dict[str, tuple[Callable[..., Any], str, list[tuple[int, ...]]]] = {
    # the cell; for each operand r (row), s (shared) or i (row of integers); their shapes
    "lstm": (lstm, "rrsss", [(N,), (N,), (N, N), (N, N), (N,)]),
    "scale": (lambda x, v: jnp.tanh(x * v), "rs", [(N,), (N,)]),
    "concatenated": (
        lambda x, h, w, b: jnp.tanh(jnp.concatenate([x, h]) @ w + b),
        "rrss",
        [(N,), (N,), (2 * N, N), (N,)],
    ),
    "two layers": (two_layers, "rsss", [(N,), (N, N), (N, N), (N,)]),
    "prologue": (lambda x, w, u: jnp.tanh(x @ (w @ jnp.sin(u))), "rss", [(N,), (N, N), (N, N)]),
    "integers": (integer_rows, "irs", [(), (N,), (4, N)]),
    "custom_vjp": (scaled_gradient, "rs", [(N,), (N,)]),
    "none shared": (lambda x, h: jnp.tanh(x) * h, "rr", [(N,), (N,)]),
    "one twice": (lambda x, w: jnp.tanh(x @ w + x @ w) + (x @ w), "rs", [(N,), (N, N)]),
    "read again": (lambda x, w, b: (jnp.sin(x @ w), x @ w + b), "rss", [(N,), (N, N), (N,)]),
    "only shared": (lambda x, w, b: (x @ w, jnp.sin(b)), "rss", [(N,), (N, N), (N,)]),
    "passed on": (lambda x, b: (x * b, b, x), "rs", [(N,), (N,)]),
    "literal": (lambda x, b: (x * b, 2.0, 3), "rs", [(N,), (N,)]),
    "hoisted": (lambda x, h, u, b: jnp.tanh(x + h @ u + b), "rrss", [(N,), (N,), (N, N), (N,)]),
    "constant": (lambda x, w: jnp.sin(jnp.tanh(x @ w) + jnp.ones(N)), "rs", [(N,), (N, N)]),
    "constant matrix": (lambda x, w: jnp.sin(jnp.tanh(x @ w) @ jnp.ones((N, 2))), "rs", [(N,), (N, N)]),
    "of rows in a sum": (lambda x, w, u: (x @ w + x) + jnp.sin(x) @ u, "rss", [(N,), (N, N), (N, N)]),
}


def made(name: str) -> tuple[Callable[..., list[Any]], CutCell, list[Any], list[Any], list[Any]]:
    """The cell as a function of rows and shared operands, its cut, one row of rows, the shared operands, ROWS rows."""
    fun, kinds, shapes = CELLS[name]
    rng = np.random.default_rng(0)

    def draw(kind: str, shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.integers(4, size=shape) if kind == "i" else rng.normal(size=shape).astype(np.float32))

    args = [draw(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]
    cell = intern_cell(jax.make_jaxpr(fun)(*args), name, "here")
    is_row = tuple(kind != "s" for kind in kinds)
    rows = [arg for arg, row in zip(args, is_row, strict=True) if row]
    shared = [arg for arg, row in zip(args, is_row, strict=True) if not row]
    many = [draw(kind, (ROWS, *shape)) for kind, shape in zip(kinds, shapes, strict=True) if kind != "s"]

    def plain(rows: Sequence[Any], shared: Sequence[Any]) -> list[Any]:
        given = iter(rows), iter(shared)
        return jax.tree.leaves(fun(*(next(given[not row]) for row in is_row)))

    return plain, cut_cell(cell, is_row), rows, shared, many


def floats(values: Sequence[Any]) -> list[Any]:
    return [value for value in map(jnp.asarray, values) if is_float(value)]


def with_floats(values: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    remaining = iter(given)
    return [next(remaining) if is_float(value) else value for value in values]


def cotangents_of(outputs: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [jnp.asarray(rng.normal(size=jnp.shape(out)), jnp.result_type(out)) for out in outputs]


def tapped(cut: CutCell, rows: Sequence[Any], taps: Sequence[Any], saved: Sequence[Any], values: Any) -> Any:
    """`tapped_forward` of a single node."""

    def one(arrays: Sequence[Any]) -> list[Any]:
        return [jnp.asarray(array)[None] for array in arrays]

    outputs, stored = cut.tapped_forward(one(rows), one(taps), one(saved), values, 1)
    return [out[0] for out in outputs], [row[0] for row in stored]


def backward(
    cut: CutCell, rows: list[Any], values: list[Any], cotangents: Any = None
) -> tuple[Any, Any, dict[Any, Any]]:
    """The cotangents of float rows and of taps, and what every use reads."""
    _, saved = cut.forward(rows, values)
    taps = [jnp.zeros(aval.shape, aval.dtype) for aval in cut.tap_avals]

    def run(float_rows: list[Any], taps: list[Any]) -> Any:
        return tapped(cut, with_floats(rows, float_rows), taps, saved, values)

    outputs, pull, stored = jax.vjp(run, floats(rows), taps, has_aux=True)
    d_rows, d_taps = pull(cotangents_of(outputs))
    return d_rows, d_taps, dict(zip((*cut.row_vars, *cut.stored_rows), (*rows, *stored), strict=True))


@pytest.mark.parametrize("name", CELLS)
def test_forward_is_the_cell(name: str) -> None:
    plain, cut, rows, shared, _ = made(name)
    outputs, saved = cut.forward(rows, cut.prologue(shared))
    assert_same([jnp.asarray(out) for out in outputs], [jnp.asarray(out) for out in plain(rows, shared)])
    assert [(s.shape, s.dtype) for s in saved] == [(aval.shape, aval.dtype) for aval in cut.saved_avals]


@pytest.mark.parametrize("name", CELLS)
def test_tapped_forward_has_the_row_cotangents_of_the_cell(name: str) -> None:
    plain, cut, rows, shared, _ = made(name)
    outputs, pull = jax.vjp(lambda given: floats(plain(with_floats(rows, given), shared)), floats(rows))
    assert_same(backward(cut, rows, cut.prologue(shared))[0], pull(cotangents_of(outputs))[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_contracted_tap_cotangents_are_the_gradients_of_shared_operands(name: str) -> None:
    plain, cut, _, shared, many = made(name)

    def at(i: int) -> list[Any]:
        return [row[i] for row in many]

    def total(shared: list[Any]) -> Any:
        outputs = [floats(plain(at(i), shared)) for i in range(ROWS)]
        return sum(jnp.sum(out * c) for outs in outputs for out, c in zip(outs, cotangents_of(outs), strict=True))

    values, pull_prologue = jax.vjp(cut.prologue, shared)
    sums: dict[Any, Any] = {var: jnp.zeros_like(value) for var, value in zip(cut.shared_vars, values, strict=True)}
    value_of = dict(zip(cut.shared_vars, values, strict=True))
    for i in range(ROWS):
        _, d_taps, env = backward(cut, at(i), values)
        remaining = iter(d_taps)
        for use in cut.tapped:
            read = [env[var] for var in use.rows]
            made_here, pull = jax.vjp(
                lambda own, use=use, read=read: floats(use(read, own)), [value_of[var] for var in use.shared]
            )
            for var, gradient in zip(use.shared, pull([next(remaining) for _ in made_here])[0], strict=True):
                sums[var] = sums[var] + gradient if is_float(var.aval) else gradient
        assert next(remaining, None) is None
    (got,) = pull_prologue(list(sums.values()))
    assert_same(got, jax.grad(total)(shared), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "weight_uses", "saved"),
    [
        ("lstm", 1, 1),
        ("concatenated", 1, 1),
        ("hoisted", 1, 1),
        ("of rows in a sum", 1, 1),
        ("two layers", 2, 2),
        ("prologue", 1, 1),
        ("scale", 1, 0),
        ("integers", 1, 0),
        ("custom_vjp", 1, 0),
        ("none shared", 0, 0),
    ],
)
def test_joints(name: str, weight_uses: int, saved: int) -> None:
    _, cut, *_ = made(name)
    assert len(cut.weight_uses) == len(cut.tapped) == weight_uses
    assert [use.is_saved for use in cut.weight_uses] == [True] * saved + [False] * (weight_uses - saved)


def test_the_sum_of_two_matmuls_and_a_bias_reads_all_of_them() -> None:
    _, cut, *_ = made("lstm")
    (use,) = cut.weight_uses
    assert len(use.rows) == 2
    assert len(use.shared) == 3
    assert use.rows == tuple(cut.row_vars)
    assert not cut.stored_rows


def test_cotangents_take_the_place_of_saved_outputs() -> None:
    assert made("lstm")[1].saved_ids == [0]
    assert made("scale")[1].saved_ids == [None]


def test_cotangents_do_not_take_the_place_of_what_stored_rows_are_computed_from() -> None:
    assert made("two layers")[1].saved_ids == [None, 1]
    assert made("concatenated")[1].saved_ids == [0]  # its stored row is made of operands


def test_constants_have_no_gradient() -> None:
    _, cut, *_ = made("constant")
    assert len(cut.weight_uses) == 2
    assert len(cut.tapped) == 1
    assert not cut.stored_rows
    assert cut.saved_ids == [0]


def test_rows_that_are_not_operands_are_stored() -> None:
    assert len(made("concatenated")[1].stored_rows) == 1
    assert len(made("two layers")[1].stored_rows) == 1


def test_what_depends_on_shared_operands_alone_is_computed_once() -> None:
    _, cut, _, (w, u), _ = made("prologue")
    (value,) = cut.prologue([w, u])
    np.testing.assert_allclose(value, w @ jnp.sin(u), rtol=1e-5, atol=1e-6)
    assert len(cut.weight_uses[0].equations) == 1


def test_saved_matmuls_are_not_computed_again() -> None:
    _, cut, rows, shared, _ = made("lstm")
    values = cut.prologue(shared)
    _, saved = cut.forward(rows, values)
    taps = [jnp.zeros(aval.shape, aval.dtype) for aval in cut.tap_avals]
    assert "dot_general" in str(jax.make_jaxpr(cut.forward)(rows, values))
    assert "dot_general" not in str(jax.make_jaxpr(functools.partial(tapped, cut))(rows, taps, saved, values))
