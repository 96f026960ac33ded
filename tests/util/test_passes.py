"""Optional passes: each does something, and results are the same without it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients

from jitbatch import jitbatch
from jitbatch.util.passes import PASSES, switched_off, without

RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.normal(size=(3, 3)), jnp.float32), "out": jnp.asarray(RNG.normal(size=3), jnp.float32)}


def make_tree(depth: int, kids: int) -> dict[str, Any]:
    children = [make_tree(depth - 1, 1 + (kids + i) % 3) for i in range(kids)] if depth else []
    return {"x": jnp.asarray(RNG.normal(size=3), jnp.float32), "kids": children}


@jitbatch
def node(params: Any, x: Any, kids: list[Any]) -> Any:
    """A list of children, something to hoist (`x @ w`), and an output that nothing in the tree reads."""
    h = jnp.tanh(x @ params["w"] + sum(jnp.tanh(kid) for kid in kids))
    return h, jnp.exp(h @ params["out"])


def scored(params: Any, tree: Any) -> Any:
    scores = []

    def encode(t: Any) -> Any:
        kids = [encode(kid) for kid in t["kids"]]
        h, score = node(params, t["x"], kids) if kids else (t["x"], t["x"][0])
        scores.append(score)
        return h

    top = encode(tree)
    return jnp.tanh(top) * 2 + 1, sum(scores)


SAMPLES = [make_tree(2, 2), make_tree(1, 3), make_tree(3, 1)]
OFF = [(), *((name,) for name in PASSES), PASSES]


@pytest.mark.parametrize("off", OFF, ids="-".join)
@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_results_are_the_same_without_a_pass(executor: Any, off: tuple[str, ...]) -> None:
    fun = jitbatch(scored, executor=executor)
    want = gradients(
        lambda p, s: jax.tree.map(lambda *x: jnp.stack(x), *[scored(p, one) for one in s]), PARAMS, SAMPLES
    )
    with without(*off):
        got = gradients(fun.batch, PARAMS, SAMPLES, transform=jax.jit)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def parts(*off: str) -> set[str]:
    """The names of the parts of types, and of cells, without some passes."""
    with without(*off):
        types = jitbatch(scored).plan(PARAMS, SAMPLES).static.types
    cells = [kind.cell.name for kind in types.kinds]
    opened = "opened" if cells.count("sum") > 1 else "whole"
    operations = [[equation.primitive.name for equation in kind.cell.jaxpr.eqns] for kind in types.kinds]
    grouped = "grouped" if ["tanh", "mul", "add"] in operations else "single"
    return {origin.part.rstrip("0123456789") for origin in types.origins} | {*cells, opened, grouped}


@pytest.mark.parametrize(
    ("name", "effect"),
    [("sums", "sum"), ("open", "opened"), ("group", "grouped"), ("hoist", "hoist"), ("sink", "sink")],
)
def test_a_pass_that_is_switched_off_does_not_run(name: str, effect: str) -> None:
    assert effect in parts()
    assert effect not in parts(name)


def test_what_is_recorded_without_a_pass_is_kept_apart() -> None:
    fun = jitbatch(scored)
    first = repr(fun.plan(PARAMS, SAMPLES))
    with without("sums", "open"):
        assert repr(fun.plan(PARAMS, SAMPLES)) != first
    assert repr(fun.plan(PARAMS, SAMPLES)) == first


def test_switches_nest_and_end() -> None:
    with without("sums"), without("hoist"):
        assert switched_off() == {"sums", "hoist"}
    assert switched_off() == frozenset()
    with pytest.raises(ValueError, match="not among the passes"), without("nonsense"):
        pass
