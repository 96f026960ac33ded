"""Cells are equal exactly when they compute the same: a table of what must differ and what must not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jitbatch import jitbatch
from jitbatch.ir.cell import Identity, Key, array_key, closed_jaxpr_key, intern_cell, param_key

X = jnp.ones(3)
M = jnp.ones((3, 3))
NAN = float("nan")
Fun = Callable[..., Any]


def key(fun: Fun, *args: Any) -> Any:
    return closed_jaxpr_key(jax.make_jaxpr(fun)(*(args or (X,))))


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def identity(x: Any) -> Any:
    return x * 1


identity.defvjp(lambda x: (identity(x), x), lambda x, g: (g * x,))


def with_jvp(slope: Any) -> Fun:
    @jax.custom_jvp
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.defjvp(lambda primals, tangents: (jnp.sin(*primals), slope * tangents[0]))
    return fun


def with_vjp(slope: Any, residual: Any = 1) -> Fun:
    @jax.custom_vjp
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.defvjp(lambda x: (jnp.sin(x), residual), lambda kept, g: (slope * kept * g,))
    return fun


def with_keyword_default(slope: Any) -> Fun:
    @jax.custom_vjp
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    def backward(kept: Any, g: Any, *, slope: Any = slope) -> Any:
        return (slope * g,)

    fun.defvjp(lambda x: (jnp.sin(x), ()), backward)
    return fun


def with_global(slope: Any) -> Fun:
    fun = jax.custom_jvp(jnp.sin)
    rule = "lambda primals, tangents: (jnp.sin(*primals), slope * tangents[0])"
    fun.defjvp(eval(rule, {"jnp": jnp, "slope": slope}))
    return fun


def times(constant: Any) -> Fun:
    return lambda x: x * constant


def scanned(body: Fun, **options: Any) -> Fun:
    return lambda x: lax.scan(lambda c, y: (body(c), y), x, jnp.zeros(2), **options)[0]


def chosen(yes: Fun, no: Fun) -> Fun:
    return lambda x: lax.cond(x[0] > 0, yes, no, x)


DIFFER: dict[str, tuple[Fun, Fun]] = {
    "zero and minus zero": (times(0.0), times(-0.0)),
    "nan and zero": (times(NAN), times(0.0)),
    "nan and infinity": (times(NAN), times(float("inf"))),
    "constants": (times(2.0), times(3.0)),
    "constants of other dtypes": (times(np.float32(2)), times(jnp.bfloat16(2))),
    "bits of array constants": (times(np.zeros(3, np.float32)), times(-np.zeros(3, np.float32))),
    "shapes of array constants": (times(np.ones(3, np.float32)), times(np.ones(1, np.float32))),
    "operand order": (lambda x: x - jnp.sin(x), lambda x: jnp.sin(x) - x),
    "primitive": (jnp.sin, jnp.cos),
    "number of outputs": (lambda x: x + 1, lambda x: (x + 1, x + 1)),
    "output order": (lambda x: (x + 1, x * 2), lambda x: (x * 2, x + 1)),
    "a parameter": (lambda x: jnp.sum(x[None], 0), lambda x: jnp.sum(x[None], 1)),
    "an int and a bool parameter": (
        lambda x: lax.convert_element_type(x, jnp.int32),
        lambda x: lax.convert_element_type(x, jnp.bool_),
    ),
    "precision": (
        lambda x: jnp.dot(M, x, precision="highest"),
        lambda x: jnp.dot(M, x, precision="default"),
    ),
    "accumulation dtype": (
        lambda x: jnp.dot(M, x, preferred_element_type=jnp.float32),
        lambda x: jnp.dot(M, x, preferred_element_type=jnp.bfloat16),
    ),
    "body of a scan": (scanned(jnp.sin), scanned(jnp.cos)),
    "constant in the body of a scan": (scanned(times(0.0)), scanned(times(-0.0))),
    "direction of a scan": (scanned(jnp.sin), scanned(jnp.sin, reverse=True)),
    "branches of a cond": (chosen(jnp.sin, jnp.cos), chosen(jnp.cos, jnp.sin)),
    "one branch of a cond": (chosen(jnp.sin, times(1.0)), chosen(jnp.sin, times(2.0))),
    "body of a while": (
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x),
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 2, x),
    ),
    "body of a jit": (lambda x: jax.jit(times(2.0))(x), lambda x: jax.jit(times(3.0))(x)),
    "jvp rule": (with_jvp(2.0), with_jvp(3.0)),
    "sign of zero in a jvp rule": (with_jvp(0.0), with_jvp(-0.0)),
    "jvp rule and none": (with_jvp(2.0), jnp.sin),
    "array in a jvp rule": (with_jvp(np.zeros(3, np.float32)), with_jvp(np.ones(3, np.float32))),
    "backward rule": (with_vjp(2.0), with_vjp(3.0)),
    "forward rule": (with_vjp(2.0, 1), with_vjp(2.0, 2)),
    "keyword default of a backward rule": (with_keyword_default(2.0), with_keyword_default(3.0)),
    "global of a jvp rule": (with_global(2.0), with_global(3.0)),
    "custom functions": (jax.nn.relu, jax.nn.relu6),
}
EQUAL: dict[str, tuple[Fun, Fun]] = {
    "fresh lambdas": (lambda x: jnp.sin(x) * 2.0, lambda y: jnp.sin(y) * 2.0),
    "nan": (times(NAN), times(float("nan"))),
    "how it is spelled": (lambda x: x + 1.0, lambda x: jnp.add(x, 1.0)),
    "local names and statements": (times(2.0), lambda x: (lambda y: y)(x) * 2.0),
    "scan": (scanned(jnp.sin), scanned(lambda c: jnp.sin(c))),
    "cond": (chosen(jnp.sin, jnp.cos), chosen(lambda x: jnp.sin(x), lambda x: jnp.cos(x))),
    "name of a jit": (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(lambda y: jnp.sin(y))(x)),
    "equal array constants": (times(np.arange(3.0)), times(np.arange(3.0))),
    "relu": (lambda x: jax.nn.relu(x), lambda x: jax.nn.relu(x)),
    "silu": (lambda x: jax.nn.silu(x), lambda x: jax.nn.silu(x)),
    "custom_jvp": (lambda x: sine(x), lambda x: sine(x)),
    "custom_jvp in a scan": (scanned(lambda c: sine(c)), scanned(lambda c: sine(c))),
    "custom_vjp": (lambda x: identity(x), lambda x: identity(x)),
    "equal jvp rules": (with_jvp(2.0), with_jvp(2.0)),
    "equal backward rules": (with_vjp(2.0), with_vjp(2.0)),
}


@pytest.mark.parametrize("case", DIFFER)
def test_must_differ(case: str) -> None:
    one, other = DIFFER[case]
    assert key(one) != key(other)


def test_rules_with_helpers_that_call_each_other_have_keys() -> None:
    def even(n: int) -> int:
        return n if n == 0 else odd(n - 1)

    def odd(n: int) -> int:
        return n if n == 0 else even(n - 1)

    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda primals, tangents: (jnp.sin(*primals), even(2) * tangents[0]))
    assert key(fun) == key(fun)


@pytest.mark.parametrize("case", EQUAL)
def test_must_be_equal(case: str) -> None:
    one, other = EQUAL[case]
    assert key(one) == key(other)
    assert hash(key(one)) == hash(key(other))


def test_types_of_arguments_are_respected() -> None:
    def fun(x: Any) -> Any:
        return lax.sin(x)

    keys = [
        key(fun, jax.ShapeDtypeStruct((), jnp.float32)),
        key(fun, jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)),
        key(fun, jax.ShapeDtypeStruct((), jnp.float16)),
        key(fun, jax.ShapeDtypeStruct((1,), jnp.float32)),
    ]
    assert len(set(keys)) == len(keys)


def test_which_argument_is_used_where_is_respected() -> None:
    keys = [key(lambda x, y: x * y, X, X), key(lambda x, y: y * x, X, X), key(lambda x, y: x * x, X, X)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0.0, -0.0), ((1,), [1]), ({"a": 1}, {"a": True})], ids=repr
)
def test_parameters_are_compared_by_type_and_bits(one: Any, other: Any) -> None:
    assert param_key(one) != param_key(other)
    assert param_key(one) == param_key(one)


def test_what_cannot_be_hashed_is_equal_to_itself_alone() -> None:
    one, other = {1}, {1}
    assert param_key(one) == param_key(one)
    assert param_key(one) != param_key(other)
    assert Identity(one) != Identity(other)


def test_array_keys() -> None:
    same = [np.float32([1, 2]), jnp.array([1.0, 2.0]), np.float32([[0, 1], [0, 2]])[:, 1]]
    assert len({array_key(array) for array in same}) == 1
    others = [np.float32([1, 2]), np.float64([1, 2]), np.float32([[1, 2]]), np.float32([1, 3]), np.int32([1, 2])]
    assert len({array_key(array) for array in others}) == len(others)
    keys = [jax.random.key(0), jax.random.key(1), jax.random.key(0, impl="rbg"), jax.random.key_data(jax.random.key(0))]
    assert len({array_key(array) for array in keys}) == len(keys)
    assert array_key(jax.random.key(0)) == array_key(jax.random.key(0))


def test_equal_hashes_are_not_equality() -> None:
    one, other = Key((1,)), Key((2,))
    other._hash = one._hash
    assert one != other


def test_cells_are_interned() -> None:
    def cell(fun: Fun, name: str) -> Any:
        return intern_cell(jax.make_jaxpr(fun)(X), name, "here:1")

    first = cell(lambda x: x * 12345.0, "first")
    again = cell(lambda x: x * 12345.0, "again")
    other = cell(lambda x: x * 12346.0, "other")
    assert again is first
    assert first.name == "first"
    assert other != first
    assert other.digest != first.digest
    assert first(X)[0].tolist() == [12345.0] * 3


def test_activations_of_a_batch_are_one_type() -> None:
    @jitbatch
    def fun(w: Any, xs: Any) -> Any:
        for x in xs:
            w = jax.nn.relu(w * x)
        return w

    plan = fun.plan(X, [jnp.ones((length, 3)) for length in (1, 2, 3)])
    assert plan.summary.types == 1


DIGESTS = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jitbatch.ir.cell import intern_cell
with_constants = lambda x: jnp.where(x > 0, x * 0.1, lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)) @ np.ones((3, 2), "f4")
for fun in (jnp.sin, with_constants, lambda x: jax.nn.softmax(x), jax.nn.relu, lambda x: jnp.sort(x)):
    closed = jax.make_jaxpr(fun)(jnp.ones(3))
    jaxpr = closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars], debug_info=None)
    print(intern_cell(closed.replace(jaxpr=jaxpr, consts=[]), "cell", "").digest)
"""


def test_digests_are_the_same_in_every_process() -> None:
    def digests(seed: str) -> list[str]:
        env = os.environ | {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, "-c", DIGESTS], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = digests("1")
    assert len(set(first)) == 5
    assert digests("2") == first
