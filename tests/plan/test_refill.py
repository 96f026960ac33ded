"""Batches that are planned for a known program: what does not fit is planned anew, and never runs wrongly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same

from jitbatch import Plan, jitbatch
from jitbatch.core import choice

CORES = ["python", *(["native"] if choice.native is not None else [])]
W = jnp.linspace(0.1, 0.4, 4)


@jitbatch
def node(w: Any, x: Any, children: Any) -> Any:
    return jnp.tanh(w * x + 0.3 * sum(children, jnp.zeros(4)))


def encode(w: Any, tree: Any) -> Any:
    x, children = tree
    return node(w, x, [encode(w, child) for child in children])


def tree(rng: np.random.Generator, *shape: int) -> Any:
    """A tree whose nodes at each depth have so many children."""
    x = rng.normal(size=4).astype(np.float32)
    return x, [tree(rng, *shape[1:]) for _ in range(shape[0])] if shape else []


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("loops", ["static", "dynamic"])
@pytest.mark.parametrize("like", ["plan", "auto"])
def test_sums_of_more_terms_than_there_is_room_for(core: str, loops: str, like: str) -> None:
    rng = np.random.default_rng(0)
    few = [tree(rng, 2, 3, 2) for _ in range(3)]
    many = [tree(rng, 2, 1), tree(rng, 12), tree(rng, 1)]
    with choice.using(core):
        fun = jitbatch(encode, loops=loops)
        first = fun.plan(W, few)
        plan = fun.plan(W, many, like=first if like == "plan" else "auto")
        assert_same(fun.batch(W, plan), jnp.stack([encode(W, one) for one in many]))
        want = jax.grad(lambda w: sum(encode(w, one).sum() for one in many))(W)
        assert_same(jax.grad(lambda w: fun.batch(w, plan).sum())(W), want)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("rows", [2, 50])
def test_rows_that_nothing_reads_have_room_too(core: str, rows: int) -> None:
    with choice.using(core):
        fun = jitbatch(lambda w, xs: jnp.tanh(w * xs[0]))
        first = fun.plan(W, [np.arange(8.0, dtype=np.float32).reshape(2, 4)])
        xs = np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)
        for plan in (fun.plan(W, [xs], like=first), fun.plan(W, [xs])):
            assert_same(fun.batch(W, plan), jnp.tanh(W * xs[0])[None])
        assert_same(fun.batch(W, [xs]), jnp.tanh(W * xs[0])[None])
        assert (fun.plan(W, [xs], like=first).static is first.static) == (rows == 2)


def test_a_plan_that_fits_makes_nothing_static(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    fun = jitbatch(encode)
    first = fun.plan(W, [tree(rng, 2, 2), tree(rng, 3)])
    samples = [tree(rng, 3), tree(rng, 2, 2)]
    monkeypatch.setattr("jitbatch.plan.plannable.make_plan", lambda *_: pytest.fail("the plan is made anew"))
    plan = fun.plan(W, samples, like=first)
    assert plan.static is first.static
    assert_same(fun.batch(W, plan), jnp.stack([encode(W, one) for one in samples]))


def test_a_program_whose_types_were_decided_again() -> None:
    """As in a long run, where caches have forgotten the first decision: the static parts are equal, not identical."""
    rng = np.random.default_rng(2)
    fun = jitbatch(encode)
    samples = [tree(rng, 2, 2), tree(rng, 3)]
    first = fun.plan(W, samples, like=None)
    fun.plan(W, samples, like=first)
    tables = first.static.tables
    tables.statics.clear()
    tables.decisions.clear()
    again = fun.plan(W, samples, like=None)
    assert again.static == first.static
    assert again.static is not first.static
    for like in (again, first):
        assert_same(fun.batch(W, fun.plan(W, samples, like=like)), jnp.stack([encode(W, one) for one in samples]))


def test_shards_without_tables_are_saved_and_loaded(tmp_path: Any) -> None:
    fun = jitbatch(lambda w, x: x)
    plan = fun.plan(W, [1.0, 2.0], shards=2)
    plan.save(tmp_path / "plan.zip")
    again = Plan.load(tmp_path / "plan.zip")
    assert again.tables.buffer.shape == plan.tables.buffer.shape == (2, 0)
    assert fun.batch(W, again.shard(1)).tolist() == [2.0]


@pytest.mark.parametrize("out", ["stack", "list", "ragged"])
def test_every_kind_of_result(out: str) -> None:
    fun = jitbatch(lambda w, xs: [jnp.tanh(w * x) for x in xs], out=out)
    batches = [[(1.0, 2.0), (3.0, 4.0)], [(5.0, 6.0), (7.0, 8.0)]]
    if out != "stack":
        batches.append([(1.0,), (2.0, 3.0, 4.0)])
    first = fun.plan(W, batches[0])
    for samples in batches:
        got = fun.batch(W, fun.plan(W, samples, like=first))
        got = got.to_list() if out == "ragged" else got
        want = [[jnp.tanh(W * x) for x in xs] for xs in samples]
        assert_same(got, [jnp.stack(column) for column in zip(*want, strict=True)] if out == "stack" else want)
