"""What is compiled is counted, and its cause is named; programs have the user's names in them."""

from __future__ import annotations

import gc
import logging
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch as jb
import jitbatch as package
from jitbatch import JitbatchError, Static, assert_max_compiles, jitbatch
from jitbatch.execute import arenas
from jitbatch.execute.fused import executor as fused_executor


@jitbatch
def leaf_cell(w: Any, x: Any) -> Any:
    return jnp.tanh(w * x)


@jitbatch
def node_cell(w: Any, left: Any, right: Any) -> Any:
    return jnp.sin(w * left + right)


@jitbatch
def odd_cell(w: Any, x: Any) -> Any:
    return jnp.cos(w * x)


def tree(w: Any, sample: Any) -> Any:
    if isinstance(sample, tuple):
        if isinstance(sample[0], Static):
            return odd_cell(w, tree(w, sample[1]))
        return node_cell(w, *(tree(w, child) for child in sample))
    return leaf_cell(w, sample)


W = jnp.ones(3)
SMALL: list[Any] = [(1.0, 2.0), 3.0]
LARGE: list[Any] = [(((1.0, 2.0), (3.0, 4.0)), ((5.0, 6.0), (7.0, 8.0))), *[(float(i), i + 0.5) for i in range(9)]]
ODD: list[Any] = [(Static("odd"), 1.0), (1.0, 2.0)]


def causes(act: Any) -> str:
    with pytest.raises(AssertionError) as caught, assert_max_compiles(0):
        act()
    assert isinstance(caught.value, JitbatchError)
    return str(caught.value)


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_the_cause_of_each_compilation_is_named(executor: str) -> None:
    batched = jitbatch(tree, executor=executor)

    def run(samples: list[Any]) -> Any:
        return batched.batch(W, batched.plan(W, samples, like=None))

    text = causes(lambda: run(SMALL))
    assert "the first plan of `tree` (" in text
    assert "test_compiles.py" in text
    with assert_max_compiles(0):
        run(SMALL)
    text = causes(lambda: run(LARGE))
    assert "a new plan of `tree`" in text
    if executor == "fused":
        assert "room for calls of node_cell grew from 1 to 16" in text
        assert "a loop of node_cell, whose calls did not read each other before" in text
        assert "`f.capacity(shared, data_set, batch_size=n)` has room for all" in text
    else:
        assert "`node_cell` runs 16 wide, and ran 1 wide" in text
    text = causes(lambda: run(ODD))
    assert "new cell type `odd_cell` at" in text
    assert f"test_compiles.py:{odd_cell.__wrapped__.__code__.co_firstlineno}" in text


def test_a_jitted_function_that_compiles_for_another_reason() -> None:
    batched = jitbatch(lambda w, x: leaf_cell(w, x))
    step = jax.jit(lambda w, plan, labels: batched.batch(w, plan).sum() - labels.sum())
    plan = batched.plan(W, [1.0, 2.0])
    short, long = np.ones(2, np.float32), np.ones(3, np.float32)
    assert "the first plan of" in causes(lambda: step(W, plan, short))
    text = causes(lambda: step(W, plan, long))
    assert "a plan that was run before: an argument of the jitted function around it is new" in text
    with assert_max_compiles(0):
        step(W, plan, short)


def test_a_cause_is_of_one_program() -> None:
    double = jitbatch(lambda scale, x: scale * x)

    def run() -> None:
        with assert_max_compiles(0):
            jax.jit(lambda scale: double.batch(scale, double.plan(scale, [1.0, 2.0])))(jnp.float32(2))
            jax.jit(lambda x: x + 41)(jnp.float32(1))

    with pytest.raises(AssertionError) as told:
        run()
    *_, unrelated = str(told.value).splitlines()
    assert unrelated.split(". ", 1)[1] == "jit(<lambda>)"


def test_another_number_of_samples_is_a_cause() -> None:
    batched = jitbatch(lambda w, x: leaf_cell(w, x))
    plan = batched.plan(W, [1.0, 2.0, 3.0])
    batched.batch(W, plan)
    text = causes(lambda: batched.batch(W, batched.plan(W, [1.0, 2.0], like=plan)))
    assert "the number of samples, or of items, was 3 and is 2" in text


def test_the_third_program_of_a_function_warns() -> None:
    batched = jitbatch(lambda w, x: leaf_cell(w, x))
    for count in (1, 2):
        batched.batch(W, batched.plan(W, [1.0] * count))
    with pytest.warns(jb.RecompileWarning, match="is compiled for the third time: another plan of .* was 2 and is 3"):
        batched.batch(W, batched.plan(W, [1.0] * 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batched.batch(W, batched.plan(W, [1.0] * 3))
        batched.batch(W, batched.plan(W, [1.0] * 4))
        for count in range(1, 70, 7):
            batched.batch(W, [1.0] * count)


def test_as_many_as_allowed() -> None:
    with assert_max_compiles(1):
        jax.jit(lambda x: x * 3 + 1.25)(1.0)

    def two() -> None:
        for constant in (2.25, 3.25):
            jax.jit(lambda x, c=constant: x * 3 + c)(np.float32(1))

    with pytest.raises(AssertionError, match=r"2 compilations, at most 1 allowed:\n  1\. .*\n  2\. "):  # noqa: SIM117
        with assert_max_compiles(1):
            two()


def test_an_error_in_the_block_is_not_hidden() -> None:
    def fail() -> None:
        jax.jit(lambda x: x * 3 + 7.25)(1.0)
        raise KeyError

    with pytest.raises(KeyError), assert_max_compiles(0):
        fail()


# --- Logging


def test_the_logger_is_silent_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("jitbatch")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    jitbatch(lambda w, x: w - x).batch(1.0, [1.0])
    assert capfd.readouterr() == ("", "")


def test_the_logger_tells_of_plans_and_programs(caplog: pytest.LogCaptureFixture) -> None:
    batched = jitbatch(lambda w, x: w - x)
    with caplog.at_level(logging.DEBUG, logger="jitbatch"):
        batched.batch(1.0, batched.plan(1.0, [1.0, 2.0]))
    assert "planned <jitbatch of" in caplog.text
    assert "the first plan of" in caplog.text


# --- Names in programs


def lowered(batched: Any, plan: Any, differentiate: bool) -> str:
    def run(w: Any) -> Any:
        return batched.batch(w, plan).sum()

    return jax.jit(jax.grad(run) if differentiate else run).lower(W).as_text(debug_info=True)


@pytest.mark.parametrize("differentiate", [False, True])
@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_programs_have_the_users_names(executor: str, differentiate: bool) -> None:
    batched = jitbatch(tree, executor=executor)
    text = lowered(batched, batched.plan(W, LARGE), differentiate)
    for name in ("leaf_cell", "node_cell"):
        assert f"{name}/" in text


def test_planning_is_seen_by_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    class Annotation(jax.profiler.TraceAnnotation):
        def __init__(self, name: str, **about: Any):
            names.append(name)
            super().__init__(name, **about)

    monkeypatch.setattr(jax.profiler, "TraceAnnotation", Annotation)
    jitbatch(lambda w, x: w + x).plan(1.0, [1.0])
    assert names == ["jitbatch.plan"]


def test_it_is_public() -> None:
    assert package.assert_max_compiles is assert_max_compiles


def test_what_was_run_does_not_keep_its_function() -> None:
    held = jnp.ones(2)

    def fun(w: Any, x: Any) -> Any:
        return w * x * held

    batched = jitbatch(fun)
    batched.batch(W[:2], [held])
    batched.batch(W[:2], batched.plan(W[:2], [held]))
    wrapped = weakref.ref(batched)
    package.clear_caches()
    jax.clear_caches()
    del batched
    gc.collect()
    assert wrapped() is None


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_programs_that_close_over_tracers_are_not_kept(executor: Any) -> None:
    package.clear_caches()

    def loss(w: Any) -> Any:
        return jitbatch(lambda scale, x: (w + scale) * jnp.sin(w) * x, executor=executor).batch(2.0, [1.0, 2.0]).sum()

    for _ in range(3):
        assert np.isclose(jax.grad(loss)(1.0), 3 * (np.sin(1.0) + 3 * np.cos(1.0)), rtol=1e-5)
    assert len(arenas._shared_programs._entries) == len(fused_executor._programs._entries) == 0
