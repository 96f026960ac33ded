"""Folding: recorded operations become one closed jaxpr without constants that computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_recorder import inputs, recording

from jitbatch.record.fold import fold
from jitbatch.util import compat

X = np.float32([1.0, 2.0])
Y = np.float32([3.0, 5.0])


def folded(fun: Callable[..., Any], *arrays: Any) -> tuple[Any, list[int | str]]:
    """The jaxpr of a function's operations; its operands as the numbers of parameters, others by name."""
    with recording("graph") as recorder:
        parameters = [recorder.alias(value) for value in inputs(recorder, *arrays)]  # as in a body
        outputs = jax.tree.leaves(fun(*parameters))
        jaxpr, operands = fold(recorder.ops, parameters, outputs, "name")
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    return jaxpr, [places.get(id(operand), "free") for operand in operands]


def primitives(jaxpr: Any) -> list[str]:
    return [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: jnp.tanh(x * y + 1.0) - y,
    "several outputs": lambda x, y: (x + y, {"sin": jnp.sin(x)}),
    "an output twice": lambda x, y: (lambda z: (z, z))(x * y),
    "rows": lambda x, y: x[1] * y[-1],
    "slices": lambda x, y: (x + y)[::-1][:1],
    "backwards slices": lambda x, y: (x + y)[::-2],
    "empty slices": lambda x, y: ((x + y)[2:], (x + y)[1:1:-1]),
    "control flow": lambda x, y: lax.cond(x[0] > y[0], jnp.sin, jnp.cos, x),
    "library functions": lambda x, y: jax.nn.softmax(x) + jax.nn.relu(y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_jaxpr_computes_what_the_operations_do(name: str) -> None:
    jaxpr, operands = folded(FUNCTIONS[name], X, Y)
    assert jaxpr.consts == []
    arrays = {0: X, 1: Y}
    got = compat.jaxpr_as_fun(jaxpr)(*(arrays[place] for place in operands))
    want = jax.tree.leaves(FUNCTIONS[name](jnp.asarray(X), jnp.asarray(Y)))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, strict=True)


def test_operands_are_used_parameters_in_order_then_what_else_is_read() -> None:
    large = jnp.arange(2.0)
    jaxpr, operands = folded(lambda x, y, z: large * z + x, X, X, X)
    assert operands == [0, 2, "free"]
    assert len(jaxpr.in_avals) == 3


def test_what_is_not_needed_is_left_out() -> None:
    def fun(x: Any, y: Any) -> Any:
        lax.sin(y)
        return lax.cos(x)

    jaxpr, operands = folded(fun, X, Y)
    assert primitives(jaxpr) == ["cos"]
    assert operands == [0]


def test_scalars_are_literals_with_their_types() -> None:
    def literals(constant: Any) -> list[tuple[Any, bool]]:
        jaxpr, operands = folded(lambda x: lax.mul(x, lax.convert_element_type(constant, jnp.float32)), np.float32(1))
        assert operands == [0]
        atoms = [atom for eqn in jaxpr.jaxpr.eqns for atom in eqn.invars if isinstance(atom, compat.Literal)]
        return [(np.asarray(atom.val).item(), atom.aval.weak_type) for atom in atoms]

    for constant in (np.float32(0.5), jnp.float32(0.5)):
        assert (0.5, False) in literals(constant)
    assert np.signbit(literals(np.float32(-0.0))[0][0])


def test_arrays_are_operands_and_never_held_by_the_jaxpr() -> None:
    constant = jnp.arange(2.0)
    one, _ = folded(lambda x: x * constant, X)
    other, _ = folded(lambda x: x * (constant + 1), X)
    assert primitives(one)[-1] == "mul"
    assert len(one.in_avals) == 2
    assert one.consts == other.consts == []


def test_an_array_that_is_read_twice_is_one_operand() -> None:
    constant = jnp.arange(2.0)
    assert folded(lambda x: x * constant + constant, X)[1] == [0, "free"]


def test_keys_are_operands() -> None:
    key = jax.random.key(0)
    assert folded(lambda x: x + jax.random.uniform(key, (2,)), X)[1] == [0, "free"]


def test_functions_of_jnp_are_opened() -> None:
    spelled, _ = folded(lambda x, y: jnp.add(x, y), X, Y)
    plain, _ = folded(lax.add, X, Y)
    assert primitives(spelled) == primitives(plain) == ["add"]


def test_effects_are_kept() -> None:
    def fun(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x + 1.0

    jaxpr, _ = folded(fun, X)
    assert jaxpr.effects
    assert any("callback" in name for name in primitives(jaxpr))
