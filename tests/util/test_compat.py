"""Only `util/compat` knows what JAX may change, and even that imports public names only."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jitbatch as package
from jitbatch import jitbatch
from jitbatch.ir.cell import param_key
from jitbatch.util import compat

SOURCES = sorted(Path(package.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_nothing_reaches_into_jax(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value.startswith("jax.") else []  # importlib.import_module
        for name in names:
            is_exception = (source.stem, name) == ("compat", "jax._src.distributed")  # the coordination service
            assert is_exception or "_src" not in name.split("."), f"{source.name}:{node.lineno} uses {name}"


def test_the_sources_were_found() -> None:
    assert {"compat", "recorder", "decorator"} <= {source.stem for source in SOURCES}


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.numpy_dtype_promotion("strict"),
    ],
    ids=["x64", "matmul precision", "promotion"],
)
def test_the_trace_context_changes_with_settings(setting: Any) -> None:
    before = compat.trace_context()
    assert compat.trace_context() is before
    with setting():
        inside = compat.trace_context()
        assert inside is not before
        assert compat.trace_context() is inside
    assert compat.trace_context() is before


def test_a_function_is_recorded_for_each_setting() -> None:
    @jitbatch
    def twice(w: Any, x: Any) -> Any:
        return (w @ x) @ w

    w, xs = jnp.ones((2, 2)), [jnp.ones((2, 2))]
    default = twice.plan(w, xs)
    with jax.default_matmul_precision("highest"):
        precise = twice.plan(w, xs)
    (one,), (other,) = default.static.program.blocks, precise.static.program.blocks
    assert one.kind.cell != other.kind.cell
    assert twice.plan(w, xs).static.program.blocks[0].kind.cell == one.kind.cell


def test_x64_is_respected() -> None:
    double = jitbatch(lambda w, x: w * x)
    assert double.batch(2.0, [1.0]).dtype == jnp.float32
    with jax.enable_x64(True):
        assert double.batch(2.0, [1.0]).dtype == jnp.float64
    assert double.batch(2.0, [1.0]).dtype == jnp.float32


def test_jits_of_the_user_are_told_from_those_of_jax() -> None:
    def jits_in(fun: Any) -> list[bool]:
        equations = jax.make_jaxpr(fun)(jnp.ones(3)).eqns
        return [compat.is_users_jit(eqn.params) for eqn in equations if eqn.primitive is compat.jit_p]

    assert jits_in(jax.jit(lambda x: x + 1)) == [True]
    assert jits_in(lambda x: jnp.where(x > 0, x, 0)) == [False]
    assert jits_in(lambda x: jax.nn.silu(x)) == [False]


def test_functions_are_keyed_by_code_and_closure() -> None:
    def scaled(by: Any, plus: Any = 0) -> Any:
        def fun(x: Any, plus: Any = plus) -> Any:
            return by * x + plus

        return fun

    def key(fun: Any) -> Any:
        return compat.callable_key(fun, param_key)

    assert key(scaled(2.0)) == key(scaled(2.0))
    assert key(scaled(2.0)) != key(scaled(3.0))
    assert key(scaled(0.0)) != key(scaled(-0.0))
    assert key(scaled(1)) != key(scaled(True))
    assert key(scaled(2.0)) != key(scaled(2.0, plus=1))
    assert key(functools.partial(scaled, 1)) == key(functools.partial(scaled, 1))
    assert key(functools.partial(scaled, 1)) != key(functools.partial(scaled, 2))


def test_keyword_only_defaults_are_part_of_a_function() -> None:
    def scaled(by: Any) -> Any:
        def fun(x: Any, *, scale: Any = by) -> Any:
            return scale * x

        return fun

    assert compat.callable_key(scaled(2.0), param_key) != compat.callable_key(scaled(3.0), param_key)


def test_a_function_that_names_itself_has_a_key() -> None:
    def countdown(n: Any) -> Any:
        return n and countdown(n - 1)

    assert compat.callable_key(countdown, param_key) == compat.callable_key(countdown, param_key)


def test_functions_that_name_each_other_have_a_key() -> None:
    def even(n: Any) -> Any:
        return n == 0 or odd(n - 1)

    def odd(n: Any) -> Any:
        return n != 0 and even(n - 1)

    assert compat.callable_key(even, param_key) == compat.callable_key(even, param_key)


def test_modes_of_tracers() -> None:
    seen: list[list[str]] = []

    def fun(x: Any) -> Any:
        seen.append(list(compat.modes_of(x)))
        return x * x

    one = jnp.float32(1)
    fun(one)
    jax.grad(fun)(one)
    jax.vjp(fun, one)
    jax.jvp(fun, (one,), (one,))
    jax.linearize(fun, one)
    jax.jacfwd(jax.vmap(fun))(jnp.ones(2))
    jax.hessian(fun)(one)
    jax.grad(jax.jacfwd(fun))(one)
    jax.jvp(jax.jit(fun), (one,), (one,))
    forward, reverse = "forward", "reverse"
    assert seen[:6] == [[], [reverse], [reverse], [forward], [forward], [forward]]
    assert seen[6:] == [[reverse, forward], [forward, reverse], []]
