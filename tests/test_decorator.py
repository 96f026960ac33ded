"""The decorator: it keeps the function what it was."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from typing import Any

import jitbatch as package
from jitbatch import Batched, jitbatch


@jitbatch
def scaled(w: float, x: Any, *, power: int = 1) -> Any:
    """Scale and raise."""
    return (w * x) ** power


def test_the_function_is_kept() -> None:
    assert isinstance(scaled, Batched)
    assert str(inspect.signature(scaled)) == str(inspect.signature(scaled.__wrapped__))
    assert list(inspect.signature(scaled).parameters) == ["w", "x", "power"]
    assert (scaled.__name__, scaled.__qualname__, scaled.__module__) == ("scaled", "scaled", __name__)
    assert scaled.__doc__ == "Scale and raise."
    assert inspect.getdoc(scaled) == "Scale and raise."
    assert scaled.__wrapped__.__annotations__ == scaled.__annotations__
    assert inspect.unwrap(scaled) is scaled.__wrapped__
    assert callable(scaled)
    assert "scaled" in repr(scaled)
    assert "test_decorator.py:" in repr(scaled)


def test_attributes_of_the_function_are_kept() -> None:
    def fun(w: Any, x: Any) -> Any:
        return w * x

    fun.note = "kept"  # type: ignore[attr-defined]
    assert jitbatch(fun).note == "kept"


def test_the_function_is_called_as_before() -> None:
    assert scaled(2.0, 3.0, power=2) == 36.0
    assert isinstance(scaled(2, 3), int)  # plain Python, no JAX in between
    assert functools.partial(scaled, 2.0)(3.0) == 6.0
    assert functools.reduce(scaled, [2.0, 3.0, 4.0]) == 24.0


def test_the_wrapped_function_knows_nothing_of_the_decorator() -> None:
    assert not hasattr(scaled.__wrapped__, "batch")
    assert jitbatch(scaled.__wrapped__, out="list").batch(2.0, [3.0]) == [6.0]


def test_partial_functions_and_lambdas_are_functions() -> None:
    partial = jitbatch(functools.partial(scaled.__wrapped__, 2.0), in_axes=0)
    assert partial.batch([1.0, 2.0]).tolist() == [2.0, 4.0]
    assert jitbatch(lambda w, x: w * x).batch(2.0, [1.0]).tolist() == [2.0]


def test_the_public_names() -> None:
    assert sorted(package.__all__) == [
        "AsyncBatched", "Batched", "CacheInfo", "Capacity", "Decisions", "JitbatchError", "Jitted", "Keys",
        "Overloaded", "Plan", "Ragged", "RecompileWarning", "Report", "Rollout", "Samples", "Server", "ServerClosed",
        "ServerStats", "Static", "StepCapacity", "assert_max_compiles", "clear_caches", "errors", "jit", "jitbatch",
        "keep_memory", "run", "segment", "value",
    ]  # fmt: skip
    assert all(hasattr(package, name) for name in package.__all__)
    assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_importing_needs_jax_alone() -> None:
    code = "import sys, jitbatch; print([m for m in ('flax', 'equinox', 'optax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_type_checkers_see_the_signatures_of_functions_and_methods(tmp_path: Any) -> None:
    code = """
from jitbatch import jitbatch

class Model:
    @jitbatch
    def score(self, tree: int) -> float: ...

@jitbatch
def plain(params: dict[str, float], tree: int) -> float: ...

reveal_type(Model().score(3))
reveal_type(plain({}, 3))
Model().score("three")
plain({}, "three")
"""
    file = tmp_path / "checked.py"
    file.write_text(code, encoding="utf-8")
    run = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(file)]
    said = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120).stdout
    assert said.count('is "float"') == 2
    assert said.count("Literal['three']") >= 2
    assert "2 errors" in said
