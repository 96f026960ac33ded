"""The loop executor: the plain function of each sample, jitted, under any transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from zoo import INPUT, Params, assert_same, counted_compilations, gradients, named, normal, rnn_params, stack

from jitbatch import clear_caches, jitbatch
from jitbatch.util.errors import MutationError, OutputError, PlanError

PARAMS = rnn_params(jax.random.key(0))
RNG = np.random.default_rng(0)
SAMPLES = [normal(RNG, length, INPUT) for length in (3, 1, 2, 3)]


def chain(params: Params, xs: Array) -> Array:
    h = params["h0"]
    for x in xs:
        h = jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])
    return h


CHAINS = jitbatch(chain, executor="per_sample")
NAMES = (
    "binary_tree", "dropout_keys", "python_numbers",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("cond_in_cell", "static_operators", "equinox_module")),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name: str) -> None:
    entry = named(name)
    params, samples = entry.draw()
    batched = jitbatch(entry.fun, executor="per_sample")
    plan = batched.plan(params, samples)
    want = gradients(entry.loop, params, samples)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if entry.low_precision else {"rtol": 1e-4, "atol": 1e-5}
    for run in (lambda params, samples: batched.batch(params, samples), lambda params, _: batched.batch(params, plan)):
        assert_same(gradients(run, params, samples), want, **tolerance)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(f)(PARAMS),
    "jvp": lambda f: jax.jvp(jax.jit(f), (PARAMS,), (PARAMS,)),
    "reverse over reverse": lambda f: jax.grad(lambda p: (jax.grad(lambda p: f(p).sum())(p)["b"] ** 2).sum())(PARAMS),
    "vmap": lambda f: jax.vmap(f)(stack([PARAMS, jax.tree.map(jnp.sin, PARAMS)])),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda p: f(p).sum()))(PARAMS),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations(name: str) -> None:
    plan = CHAINS.plan(PARAMS, SAMPLES)
    want = TRANSFORMS[name](lambda p: stack([chain(p, xs) for xs in SAMPLES]))
    assert_same(TRANSFORMS[name](lambda p: CHAINS.batch(p, plan)), want, rtol=1e-4, atol=1e-5)
    assert_same(TRANSFORMS[name](lambda p: CHAINS.batch(p, SAMPLES)), want, rtol=1e-4, atol=1e-5)


def test_samples_are_differentiated_and_plans_are_not() -> None:
    want = jax.grad(lambda samples: stack([chain(PARAMS, xs) for xs in samples]).sum())(SAMPLES)
    assert_same(jax.grad(lambda samples: CHAINS.batch(PARAMS, samples).sum())(SAMPLES), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(PlanError, match="a plan's inputs are constants"):
        jax.grad(lambda plan: CHAINS.batch(PARAMS, plan).sum(), allow_int=True)(CHAINS.plan(PARAMS, SAMPLES))


def test_a_plan_is_a_pytree_and_says_what_it_is() -> None:
    plan = CHAINS.plan(PARAMS, SAMPLES)
    assert repr(plan) == (
        "Plan(4 samples: 4 nodes, 4 distinct, 1 levels, 3 types -> 4 steps, width 1.0, 0% padding, per_sample)"
    )
    assert str(plan).splitlines()[1:] == [
        "  structure 0: 2 samples", "  structure 1: 1 samples", "  structure 2: 1 samples"
    ]  # fmt: skip
    other = CHAINS.plan(PARAMS, [-xs for xs in SAMPLES])
    assert other.static == plan.static
    traces = []
    run = jax.jit(lambda params, plan: traces.append(None) or CHAINS.batch(params, plan))
    for one, samples in ((plan, SAMPLES), (other, [-xs for xs in SAMPLES])):
        assert_same(run(PARAMS, one), stack([chain(PARAMS, xs) for xs in samples]))
    assert len(traces) == 1


def test_shards_of_equal_structures() -> None:
    plan = CHAINS.plan(PARAMS, SAMPLES[:1] + SAMPLES[3:], shards=2)
    assert_same(CHAINS.batch(PARAMS, plan.shard(1)), chain(PARAMS, SAMPLES[3])[None])


def test_a_structure_is_traced_and_compiled_once() -> None:
    clear_caches()
    calls = []
    batched = jitbatch(lambda params, xs: calls.append(None) or chain(params, xs), executor="per_sample")
    others = {name: jnp.cos(value) for name, value in PARAMS.items()}
    assert list(others) != sorted(others)
    with counted_compilations() as compilations:
        batched.batch(PARAMS, SAMPLES)
        assert (len(calls), len(compilations)) == (3, 4)  # and one that stacks
        batched.batch(PARAMS, batched.plan(PARAMS, SAMPLES[::-1]))
        batched.batch(others, SAMPLES)
        assert (len(calls), len(compilations)) == (3, 4)
        batched.batch(dict(sorted(others.items())), SAMPLES)  # whose order might make a difference
        assert (len(calls), len(compilations)) == (6, 4)
    assert batched.cache_info()["programs"][:2] == (13, 6)
    assert batched.cache_info()["structures"].currsize == 0
    clear_caches()
    assert batched.cache_info()["programs"][:2] == (0, 0)


def test_outputs_as_a_list_and_those_that_differ() -> None:
    def rows(params: Params, xs: Array) -> dict[str, Any]:
        return {"h": xs @ params["x"], "none": None}

    listed = jitbatch(rows, executor="per_sample", out="list")
    want = [rows(PARAMS, xs) for xs in SAMPLES]
    assert_same(listed.batch(PARAMS, SAMPLES), want)
    assert_same(listed.batch(PARAMS, listed.plan(PARAMS, SAMPLES)), want)
    assert listed.batch(PARAMS, []) == []
    messages = []
    for executor in ("per_sample", "fused"):
        stacked = jitbatch(rows, executor=executor)
        for call in (stacked.batch, stacked.plan):
            with pytest.raises(OutputError, match=r"sample 1 has the result .* cannot be stacked") as raised:
                call(PARAMS, SAMPLES)
            messages.append(str(raised.value))
    assert len(set(messages)) == 1


def test_no_samples() -> None:
    batched = jitbatch(chain, executor="per_sample")
    batched.batch(PARAMS, SAMPLES)
    assert batched.batch(PARAMS, []).shape == (0, *PARAMS["h0"].shape)


def test_a_value_of_an_outer_transformation_in_a_closure() -> None:
    def loss(scale: Array, run: Callable[[Any], Any]) -> Array:
        return run(lambda params, xs: scale * chain(params, xs)).sum()

    def batch(fun: Any) -> Any:
        return jitbatch(fun, executor="per_sample").batch(PARAMS, SAMPLES)

    want = jax.grad(loss)(2.0, lambda fun: stack([fun(PARAMS, xs) for xs in SAMPLES]))
    assert_same(jax.grad(loss)(2.0, batch), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(PlanError, match="cannot be planned"):
        jax.grad(loss)(2.0, lambda fun: jitbatch(fun, executor="per_sample").plan(PARAMS, SAMPLES) and jnp.zeros(()))


def test_a_closure_is_not_kept() -> None:
    held: list[Any] = [1.0]
    batched = jitbatch(lambda params, xs: held[0] * chain(params, xs), executor="per_sample")
    for scale in (2.0, 3.0):

        def loss(x: Array) -> Array:
            held[0] = x
            return batched.batch(PARAMS, SAMPLES).sum()

        want = stack([chain(PARAMS, xs) for xs in SAMPLES]).sum()
        assert_same(jax.value_and_grad(loss)(scale), (scale * want, want), rtol=1e-4, atol=1e-5)


def test_errors_of_a_sample() -> None:
    with pytest.raises(OutputError, match="returned 'text' of type str at result"):
        jitbatch(lambda params, xs: [xs, "text"], executor="per_sample").batch(PARAMS, SAMPLES)
    with pytest.raises(ZeroDivisionError) as raised:
        jitbatch(lambda params, xs: xs * (1 // (len(xs) - 1)), executor="per_sample").batch(PARAMS, SAMPLES)
    assert any("sample 1 of" in note for note in raised.value.__notes__)


def test_a_plan_holds_the_samples_as_they_were() -> None:
    sample = np.ones((2, INPUT), np.float32)
    plan = CHAINS.plan(PARAMS, [sample])
    want = CHAINS.batch(PARAMS, plan)
    sample[:] = 0
    assert_same(CHAINS.batch(PARAMS, plan), want)


def test_no_items_like_a_plan_with_items() -> None:
    items = jitbatch(lambda scale, xs: [{"x": scale * x} for x in xs], executor="per_sample", out="ragged")
    with pytest.raises(OutputError, match="`like` a plan with items"):
        items.plan(2.0, [(), ()])
    first = items.plan(2.0, [(1.0, 2.0), (3.0,)])
    plan = items.plan(2.0, [(), ()], like=first)
    result = items.batch(2.0, plan)
    assert result.to_list() == [[], []]
    assert result.rows["x"].shape == first.ragged.mask.shape
    assert not result.mask.any()


class Counting(nnx.Module):
    def __init__(self) -> None:
        self.count = nnx.Variable(jnp.zeros(()))

    @jitbatch(executor="per_sample")
    def score(self, xs: Array) -> Array:
        self.count[...] += 1
        return xs.sum()


def test_a_change_of_state_is_refused() -> None:
    with pytest.raises(MutationError, match="Counting was changed in place"):
        Counting().score.batch(SAMPLES)
