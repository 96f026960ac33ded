"""The decorator: it keeps the function what it was, and adds `.batch`, `.plan` and `.cache_info`."""

from __future__ import annotations

import copy
import functools
import inspect
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch as package
from jitbatch import Batched, CacheInfo, clear_caches, jitbatch

X = np.float32([1.0, 2.0])


@jitbatch
def scaled(w: float, x: Any, *, power: int = 1) -> Any:
    """Scale and raise."""
    return (w * x) ** power


class Model:
    """A pytree with decorated methods."""

    def __init__(self, w: Any):
        self.w = w

    @jitbatch
    def score(self, x: Any, y: Any = 1.0) -> Any:
        """The score of one sample."""
        return self.w * x + y

    @jitbatch(in_axes=(None, 0))
    def weighted(self, weight: Any, x: Any) -> Any:
        return self.w * weight * x

    @jitbatch
    def total(self, tree: Any) -> Any:
        return sum(self.total(t) for t in tree) if isinstance(tree, tuple) else self.score(tree)

    @staticmethod
    @jitbatch
    def product(w: Any, x: Any) -> Any:
        return w * x

    @staticmethod
    @jitbatch(in_axes=(0, None))
    def swapped(x: Any, w: Any) -> Any:
        return w * x


jax.tree_util.register_pytree_node(Model, lambda m: ((m.w,), None), lambda _, leaves: Model(*leaves))


# --- What a function keeps


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
        "ServerStats", "Static", "StepCapacity", "assert_max_compiles", "clear_caches", "jit", "jitbatch",
        "keep_memory", "run", "segment", "value",
    ]  # fmt: skip
    assert all(hasattr(package, name) for name in package.__all__)
    assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_importing_needs_jax_alone() -> None:
    code = "import sys, jitbatch; print([m for m in ('flax', 'equinox', 'optax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- Methods


def test_methods_are_bound() -> None:
    model = Model(jnp.float32(3))
    assert model.score(2.0) == 7.0
    assert Model.score(model, 2.0) == 7.0
    assert model.score.batch([1.0, 2.0]).tolist() == [4.0, 7.0]
    assert Model.score.batch(model, [1.0, 2.0]).tolist() == [4.0, 7.0]
    assert model.score.batch([1.0], y=[5.0]).tolist() == [8.0]
    assert model.total.batch([1.0, (1.0, (2.0, 3.0))]).tolist() == [4.0, 21.0]


def test_bound_methods_keep_what_methods_are() -> None:
    model = Model(jnp.float32(3))
    assert str(inspect.signature(model.score)) == "(x: 'Any', y: 'Any' = 1.0) -> 'Any'"
    assert (model.score.__name__, model.score.__doc__) == ("score", "The score of one sample.")
    assert (model.score.__qualname__, model.score.__module__) == ("Model.score", __name__)
    assert not hasattr(model.score, "nothing")
    assert copy.copy(model.score)(2.0) == model.score(2.0)
    assert model.score.__wrapped__.__self__ is model
    assert Model.score.__wrapped__(model, 2.0) == 7.0
    assert repr(model.score) == repr(Model.score)


def test_the_receiver_has_no_entry_in_in_axes() -> None:
    model = Model(jnp.float32(3))
    assert model.weighted.batch(2.0, [1.0, 2.0]).tolist() == [6.0, 12.0]
    assert Model.weighted.batch(model, 2.0, [1.0, 2.0]).tolist() == [6.0, 12.0]


def test_methods_are_planned() -> None:
    model = Model(jnp.float32(3))
    plan = model.score.plan([1.0, 2.0])
    assert model.score.batch(plan).tolist() == [4.0, 7.0]
    assert Model(jnp.float32(0)).score.batch(plan).tolist() == [1.0, 1.0]
    assert Model.score.batch(model, plan).tolist() == [4.0, 7.0]


def test_methods_of_all_objects_have_one_cache() -> None:
    clear_caches()
    for w in (1.0, 2.0):
        Model(jnp.float32(w)).score.batch([1.0, 2.0])
    assert Model.score.cache_info()["structures"] == CacheInfo(hits=3, misses=1, maxsize=16384, currsize=1)
    assert Model(1.0).score.cache_info() == Model.score.cache_info()


def test_static_methods() -> None:
    model = Model(jnp.float32(3))
    for owner in (Model, model):
        assert owner.product(2.0, 3.0) == 6.0
        assert owner.product.batch(2.0, [1.0, 2.0]).tolist() == [2.0, 4.0]
        assert owner.swapped.batch([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]


def test_a_subclass_inherits_and_overrides() -> None:
    class Doubled(Model):
        @jitbatch
        def score(self, x: Any, y: Any = 1.0) -> Any:
            return 2 * Model.score(self, x, y)

    jax.tree_util.register_pytree_node(Doubled, lambda m: ((m.w,), None), lambda _, leaves: Doubled(*leaves))
    model = Doubled(jnp.float32(3))
    assert model.score.batch([1.0, 2.0]).tolist() == [8.0, 14.0]
    assert model.total.batch([(1.0, 2.0)]).tolist() == [22.0]


def test_a_function_that_is_also_a_class_attribute_stays_a_function() -> None:
    @jitbatch(in_axes=(0, None))
    def swapped(x: Any, w: Any) -> Any:
        return w * x

    class Holder:
        attribute = swapped

    assert Holder.attribute is swapped
    assert swapped.batch([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]


# --- Caches


def test_cache_info_counts_structures_and_subgraphs() -> None:
    cell = jitbatch(lambda w, x: w * x)

    @jitbatch
    def fun(w: Any, xs: Any) -> Any:
        return sum(cell(w, x) for x in xs)

    assert fun.cache_info()["structures"] == CacheInfo(0, 0, 16384, 0)
    fun.batch(1.0, [(1.0,), (1.0, 2.0), (3.0, 4.0)])
    info = fun.cache_info()
    assert info["structures"] == CacheInfo(hits=1, misses=2, maxsize=16384, currsize=2)
    assert info["subgraphs"] == CacheInfo(hits=2, misses=1, maxsize=4096, currsize=1)
    clear_caches()
    assert fun.cache_info()["structures"] == CacheInfo(0, 0, 16384, 0)


def test_functions_share_no_context() -> None:
    one, other = jitbatch(lambda w, x: w * x), jitbatch(lambda w, x: w + x)
    assert one.batch(2.0, [3.0]).tolist() == [6.0]
    assert other.batch(2.0, [3.0]).tolist() == [5.0]


def test_a_plan_survives_cleared_caches() -> None:
    plan = scaled.plan(2.0, [1.0, 2.0])
    clear_caches()
    assert scaled.batch(2.0, plan).tolist() == [2.0, 4.0]


# --- Threads


def test_threads_batch_the_same_function_cold() -> None:
    clear_caches()
    cell = jitbatch(lambda w, x, y: jnp.tanh(w * x + y))

    @jitbatch
    def encode(w: Any, tree: Any) -> Any:
        return cell(w, *(encode(w, child) for child in tree)) if isinstance(tree, tuple) else tree

    samples = [X, (X, X), ((X, 2 * X), X), (X, (X, (3 * X, X)))]
    barrier = threading.Barrier(8)
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait()
            results.append(np.asarray(encode.batch(X, samples)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(results) == 8
    want = np.stack([encode(jnp.asarray(X), sample) for sample in samples])
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-5)
    assert encode.cache_info()["structures"].currsize == len(samples)


def test_threads_batch_while_caches_are_cleared() -> None:
    done = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                assert scaled.batch(2.0, [1.0, 2.0]).tolist() == [2.0, 4.0]
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.01):
        clear_caches()
    thread.join()
    assert errors == []


# --- Zero samples


def test_zero_samples_as_a_list() -> None:
    assert jitbatch(lambda w, x: w * x, out="list").batch(1.0, []) == []


@pytest.mark.parametrize("mapped", [[], np.zeros((0, 2), np.float32)], ids=["list", "array"])
def test_zero_samples_of_a_known_function(mapped: Any) -> None:
    fun = jitbatch(lambda w, x: {"y": w * x})
    fun.batch(1.0, [X])
    empty = fun.batch(1.0, mapped)
    assert (empty["y"].shape, empty["y"].dtype) == ((0, 2), jnp.float32)


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


def test_class_methods_and_static_methods() -> None:
    class Model:
        factor = 3.0

        @classmethod
        @jitbatch
        def scaled(cls, x: Any) -> Any:
            return cls.factor * x

        @staticmethod
        @jitbatch
        def product(p: Any, x: Any) -> Any:
            return p * x

    class Other(Model):
        factor = 5.0

    assert (Model.scaled(2.0), Other().scaled(2.0), Model.product(2.0, 3.0)) == (6.0, 10.0, 6.0)
    assert Model.scaled.batch([1.0, 2.0]).tolist() == [3, 6]
    assert Other.scaled.batch([1.0, 2.0]).tolist() == [5, 10]
    assert Model().product.batch(2.0, [1.0, 2.0]).tolist() == [2, 4]
