"""`.batch` on samples: programs do not depend on the number of samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, counted_compilations

from jitbatch import jitbatch
from jitbatch.plan.eager import on_grid

W = jnp.linspace(-0.5, 0.5, 9).reshape(3, 3)


@jitbatch
def cell(w: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(x @ w + y)


def states(w: Any, xs: Any) -> list[Any]:
    ys = [jnp.zeros(3)]
    for x in xs:
        ys.append(cell(w, x, ys[-1]))
    return ys[1:]


def chain(w: Any, xs: Any) -> Any:
    return {"last": states(w, xs)[-1], "length": len(xs)}


def chains(rng: np.random.Generator, count: int) -> list[Any]:
    return [rng.normal(size=(rng.integers(1, 12), 3)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("out", ["stack", "list", "ragged"])
def test_any_number_of_samples(out: str) -> None:
    """Values are those of the loop, and few programs serve all numbers."""
    fun = states if out == "ragged" else chain
    batched = jitbatch(fun, out=out)
    rng = np.random.default_rng(0)
    programs = set()
    for count in (17, 3, 64, 1, 20, 33, 2, 50, 4, 61):
        samples = chains(rng, count)
        with counted_compilations() as compiled:
            got: Any = batched.batch(W, samples)
        programs.add(len(compiled))
        want = [fun(W, sample) for sample in samples]
        if out == "stack":
            want = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *want)
        assert_same(got.to_list() if out == "ragged" else got, want)
    (context,) = batched._planner.contexts
    assert len({static for static in context.tables.statics if static.out == "rows"}) <= 6


def test_gradients_of_any_number_of_samples() -> None:
    batched = jitbatch(chain)
    rng = np.random.default_rng(0)
    for count in (9, 13, 5):
        samples = chains(rng, count)
        got = jax.grad(lambda w, s=samples: batched.batch(w, s)["last"].sum())(W)
        want = jax.grad(lambda w, s=samples: sum(chain(w, one)["last"].sum() for one in s))(W)
        assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_results_are_arrays_on_the_device_of_the_parameters() -> None:
    samples = chains(np.random.default_rng(0), 3)
    got = jitbatch(chain).batch(W, samples)["last"]
    assert isinstance(got, jax.Array)
    assert got.shape == (3, 3)
    assert got.devices() == W.devices()


def test_keys_are_cut() -> None:
    keys = jitbatch(lambda w, key: jax.random.fold_in(key, 1))
    given = list(jax.random.split(jax.random.key(0), 3))
    got = keys.batch(W, given)
    assert got.shape == (3,)
    assert_same(got, jnp.stack([jax.random.fold_in(key, 1) for key in given]))


def test_the_grid() -> None:
    assert [on_grid(count) for count in (1, 2, 5, 17, 65)] == [1, 4, 16, 64, 256]
