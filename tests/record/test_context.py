"""Contexts: samples of a known structure are not recorded again, and what makes a structure new."""

from __future__ import annotations

import contextvars
import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.record import context as context_module
from jitbatch.util.errors import VerifyError

X = np.float32([1.0, 2.0])


def counted(fun: Any, **options: Any) -> tuple[Any, list[None]]:
    runs: list[None] = []

    def body(shared: Any, sample: Any) -> Any:
        runs.append(None)
        return fun(shared, sample)

    return jitbatch(body, **options), runs


def test_each_kind_of_shared_arguments_is_recorded_for_itself() -> None:
    batched, runs = counted(lambda w, x: w["f"](w["w"] * x))
    for w, f, expected in ((1.0, jnp.sin, 1), (2.0, jnp.sin, 1), (1, jnp.sin, 2), (1.0, jnp.cos, 3), (X, jnp.sin, 4)):
        got = batched.batch({"w": w, "f": f}, [X])
        assert len(runs) == expected
        np.testing.assert_allclose(got, [f(w * X)], rtol=1e-6)


def test_a_full_context_is_dropped_and_results_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "MAX_KINDS", 2)

    def fun(w: Any, sample: Any) -> Any:
        return w * sample[1] ** sample[0].value

    batched, runs = counted(fun)
    for power in (2, 3, 4, 5, 6, 2):
        assert batched.batch(1.0, [(Static(power), 2.0)]).tolist() == [2.0**power]
    assert len(runs) == 6
    (context,) = batched._planner.contexts
    assert len(context.tables.kinds) <= 4


def test_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "MAX_STRUCTURES", 2)
    batched, runs = counted(lambda _, x: x[0])
    for _ in range(2):
        batched.plan(None, [np.zeros(1), np.zeros(2), np.zeros(3)])
    assert len(runs) == 3 + 1  # the one that was forgotten
    assert batched.cache_info()["structures"].currsize == 2


def test_more_graphs_are_kept_once_one_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 2)
    batched, runs = counted(lambda _, x: x[0])
    epoch = [np.zeros(length) for length in range(1, 6)]
    batched.plan(None, epoch)
    assert (len(runs), batched.cache_info()["structures"].currsize) == (5, 2)
    batched.plan(None, epoch)
    known = len(runs)
    batched.plan(None, epoch)
    assert len(runs) == known


def test_a_context_has_more_room_once_kinds_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "FIRST_KINDS", 2)
    batched, runs = counted(lambda w, sample: w * sample[1] ** sample[0].value)

    def plan(powers: Sequence[int]) -> int:
        before = len(runs)
        for power in powers:
            batched.plan(1.0, [(Static(power), 2.0)])
        return len(runs) - before

    assert plan(range(2, 30)) == 28
    (context,) = batched._planner.contexts
    assert len(context.tables.kinds) <= 4
    for _ in range(3):
        plan(range(2, 10))
    assert plan(range(2, 10)) == 0


def test_a_context_that_was_dropped_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what is noted of plans that were run."""
    monkeypatch.setattr(context_module, "FIRST_KINDS", 2)
    batched = jitbatch(lambda w, sample: w * sample[1] ** sample[0].value, executor="dispatch")
    tables = []
    for power in range(2, 12):
        batched.batch(1.0, [(Static(power), 2.0)])
        (context,) = batched._planner.contexts
        tables.append(weakref.ref(context.tables))
        del context
    gc.collect()
    assert len({id(one()) for one in tables if one() is not None}) == 1


def test_a_function_that_is_made_for_a_sample_is_let_go() -> None:
    """And what it closes over: nobody can call it again."""
    tables: list[weakref.ref[Any]] = []

    def fun(w: Any, sample: Any) -> Any:
        table = np.full(1000, sample[0].value, np.float32)
        tables.append(weakref.ref(table))
        return jitbatch(lambda w, x: w * x + float(table.sum()))(w, sample[1])

    samples = [(Static(number), np.float32(2)) for number in range(3)]
    batched = jitbatch(fun)
    got = batched.batch(jnp.float32(3), samples)
    gc.collect()
    assert len(tables) == 3
    assert all(table() is None for table in tables)
    np.testing.assert_allclose(got, [6, 1006, 2006])


def test_an_exception_leaves_nothing_behind() -> None:
    fail = [True]

    def fun(w: Any, x: Any) -> Any:
        if fail[0]:
            raise RuntimeError("on purpose")
        return w * x

    batched = jitbatch(fun)
    with pytest.raises(RuntimeError, match="on purpose"):
        batched.batch(2.0, [X])
    assert jnp.sin(X).shape == (2,)  # the recorder is not current any more
    fail[0] = False
    np.testing.assert_allclose(batched.batch(2.0, [X]), [2.0 * X])


def test_graphs_are_verified_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph) -> None:
        raise VerifyError("graph: broken on purpose")

    monkeypatch.setattr(Graph, "verify", broken)
    with pytest.raises(VerifyError, match="broken on purpose"):
        jitbatch(lambda _, x: x).batch(None, [X])
    contextvars.Context().run(lambda: jitbatch(lambda _, x: x).batch(None, [X]))


def test_what_an_output_looks_like_is_known_when_recording_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    batched, _ = counted(lambda w, x: w * x)
    assert batched.batch(2.0, [jnp.ones(3)]).shape == (1, 3)
    monkeypatch.setattr(context_module.Context, "is_full", True)
    assert batched.batch(2.0, []).shape == (0, 3)


def test_a_recursion_that_is_too_deep_says_so() -> None:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return w * x

    @jitbatch
    def chain(w: Any, xs: Any) -> Any:
        return w if xs is None else cell(w, chain(w, xs[1]))

    xs = None
    for i in range(sys.getrecursionlimit() // 3):
        xs = (float(i), xs)
    with pytest.raises(RecursionError) as raised:
        chain.batch(jnp.float32(2), [xs])
    assert any("sys.setrecursionlimit" in note for note in raised.value.__notes__)
    assert "sample 0 of" in raised.value.__notes__[0]
