"""Plans whose inputs are differentiated: gradients in the structure of the samples, those of the plain loop."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jitbatch import jitbatch
from jitbatch.util.errors import ArgumentError, PlanError
from tests.zoo.compare import assert_same

PARAMS = {"w": jnp.array([[0.4, -0.3], [0.2, 0.7]]), "s": jnp.array([0.3, 0.8]), "k": jnp.float32(0.9)}


@jitbatch
def pair(params: Any, here: Any, there: Any, charge: Any) -> Any:
    squared = jnp.sum((here - there) ** 2)
    return charge * params["k"] * jnp.exp(-jnp.sqrt(squared + 1e-3))


@jitbatch
def fold(params: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ params["w"] + x)


@jitbatch
def energy(params: Any, molecule: Any) -> Any:
    """Pairs of atoms, and a recurrence over them: a phase outside of loops and a loop."""
    places, charge = molecule["positions"], molecule["charge"]
    pairs = [
        pair(params, here, there, charge) for i, here in enumerate(places) for there in list(places)[:i]
    ]  # fmt: skip
    h = jnp.zeros(2)
    for place in places:
        h = fold(params, h, place)
    return sum(pairs, jnp.float32(0)) + params["s"] @ h


def molecules() -> list[Any]:
    rng = np.random.default_rng(0)
    made = [
        {"positions": rng.normal(size=(n, 2)).astype("f"), "charge": np.float32(n), "kind": n} for n in (2, 4, 1, 3)
    ]
    return [*made, made[0]]


def gradients(fun: Any, params: Any, samples: list[Any]) -> list[Any]:
    def one(positions: Any, sample: Any) -> Any:
        return fun(params, {**sample, "positions": positions})

    return [jax.grad(one)(jnp.asarray(sample["positions"]), sample) for sample in samples]


def forces(params: Any, plan: Any) -> Any:
    return jax.grad(lambda inputs: energy.batch(params, plan.with_inputs(inputs)).sum())(plan.inputs)


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_gradients_are_those_of_the_plain_loop(executor: str) -> None:
    batched, samples = jitbatch(energy.__wrapped__, executor=executor), molecules()
    plan = batched.plan(PARAMS, samples, differentiable="positions")

    def run(inputs: Any) -> Any:
        return (jnp.arange(5.0) * batched.batch(PARAMS, plan.with_inputs(inputs))).sum()

    found = plan.unpack(jax.grad(run)(plan.inputs))
    wanted = [number * one for number, one in enumerate(gradients(energy.__wrapped__, PARAMS, samples))]
    assert_same([one["positions"] for one in found], wanted, rtol=1e-4, atol=1e-6)
    assert {(one["charge"], one["kind"]) for one in found} == {(None, None)}


def test_equal_samples_are_not_merged_where_they_depend_on_these_inputs() -> None:
    samples = molecules()
    merged = energy.plan(PARAMS, samples)
    plan = energy.plan(PARAMS, samples, differentiable="positions")
    assert plan.summary.distinct == plan.summary.nodes == merged.summary.nodes > merged.summary.distinct


def test_a_loss_on_gradients_is_differentiated_in_reverse_mode() -> None:
    """What training on forces needs: reverse mode over reverse mode, through a loop."""
    samples = molecules()
    plan = energy.plan(PARAMS, samples, differentiable="positions")
    targets = [{"positions": np.full(sample["positions"].shape, 0.1, "f")} for sample in samples]

    @jax.jit
    def step(params: Any, plan: Any, targets: Any) -> Any:
        def loss(params: Any) -> Any:
            return sum(jnp.sum((one - target) ** 2) for one, target in zip(forces(params, plan), targets, strict=True))

        return jax.value_and_grad(loss)(params)

    def plain(params: Any) -> Any:
        return sum(jnp.sum((one - 0.1) ** 2) for one in gradients(energy.__wrapped__, params, samples))

    got = step(PARAMS, plan, plan.pack(targets))
    assert_same(got, jax.value_and_grad(plain)(PARAMS), rtol=2e-4, atol=1e-5)


def test_plans_of_other_samples_are_for_the_same_program() -> None:
    first, *_ = molecules()
    samples = [[first, first], [first, {**first, "positions": first["positions"] + 1}]]
    step = jax.jit(forces)
    for some in samples:
        plan = energy.plan(PARAMS, some, differentiable="positions")
        found = [one["positions"] for one in plan.unpack(step(PARAMS, plan))]
        assert_same(found, gradients(energy.__wrapped__, PARAMS, some), rtol=1e-4, atol=1e-6)
    assert step._cache_size() == 1
    constant = energy.plan(PARAMS, samples[0], like=plan)
    assert not constant.static.differentiable
    with pytest.raises(PlanError, match="no differentiable inputs"):
        constant.with_inputs(plan.inputs)


@jax.tree_util.register_dataclass
@dataclass
class Chain:
    places: list[Any]
    stiffness: Any


@jitbatch
def chained(params: Any, names: Any, chain: Chain, whole: Any) -> Any:
    steps = [jnp.sum((a - b) ** 2) for a, b in zip(chain.places, chain.places[1:], strict=False)]
    return chain.stiffness * sum(steps, jnp.float32(0)) + jnp.sum(whole**3) + jnp.sum(whole[0]) * params["k"]


def test_arguments_keys_attributes_and_paths_are_names() -> None:
    rng = np.random.default_rng(1)
    chains = [Chain([rng.normal(size=3).astype("f") for _ in range(n)], 0.5 * n) for n in (2, 3)]
    wholes = [rng.normal(size=(n, 2)).astype("f") for n in (1, 2)]
    names = [{"places": 1}, {"places": 2}]
    plan = chained.plan(PARAMS, names, chains, wholes, differentiable=["chain.places", "whole"])
    gradient = jax.grad(lambda inputs: chained.batch(PARAMS, plan.with_inputs(inputs)).sum())(plan.inputs)
    nothing, by_chain, by_whole = plan.unpack(gradient)
    assert [one["places"] for one in nothing] == [None, None]
    each = zip(names, chains, wholes, strict=True)
    wanted = [jax.grad(chained.__wrapped__, (2, 3), allow_int=True)(PARAMS, *one) for one in each]
    assert_same([one.places for one in by_chain], [one.places for one, _ in wanted], rtol=1e-5)
    assert [one.stiffness for one in by_chain] == [None, None]
    assert_same(by_whole, [one for _, one in wanted], rtol=1e-5)  # read as a whole and by row: both are counted
    stiff = chained.plan(PARAMS, names, chains, wholes, differentiable="stiffness")
    (found,) = jax.grad(lambda inputs: chained.batch(PARAMS, stiff.with_inputs(inputs)).sum())(stiff.inputs)
    assert_same([one.stiffness for one in stiff.unpack((found,))[1]], [one.stiffness for one, _ in wanted], rtol=1e-5)


def test_other_inputs_stay_constants() -> None:
    plan = energy.plan(PARAMS, molecules(), differentiable="positions")

    def run(rows: Any) -> Any:
        return energy.batch(PARAMS, jax.tree.unflatten(jax.tree.structure(plan), rows)).sum()

    with pytest.raises(PlanError, match=r"f\.plan\(\.\.\., differentiable=\.\.\.\)"):
        jax.grad(run, allow_int=True)(jax.tree.leaves(plan))


def test_padding_has_no_gradient_and_packing_is_the_inverse() -> None:
    samples = molecules()
    plan = energy.plan(PARAMS, samples, differentiable="positions", like=None)
    larger = energy.plan(PARAMS, [*samples, *samples], differentiable="positions", like=None)
    plan = energy.plan(PARAMS, samples, differentiable="positions", like=larger)
    (rows,) = plan.inputs
    assert len(rows) > sum(len(sample["positions"]) for sample in samples)
    assert_same(plan.pack(plan.unpack(plan.inputs)), plan.inputs)
    assert not np.any(np.asarray(forces(PARAMS, plan)[0])[sum(len(sample["positions"]) for sample in samples) :])


def test_rows_of_other_inputs_of_the_same_class_have_no_gradient() -> None:
    """Else a loss on gradients, a sum over rows, would count them."""
    pulled = jitbatch(lambda params, molecule: params["k"] * jnp.sum(molecule["positions"][0] * molecule["wind"]))
    samples = [{"positions": np.ones((1, 2), "f"), "wind": np.full(2, n, "f")} for n in (1, 2)]
    plan = pulled.plan(PARAMS, samples, differentiable="positions")
    (rows,) = jax.grad(lambda inputs: pulled.batch(PARAMS, plan.with_inputs(inputs)).sum())(plan.inputs)
    np.testing.assert_allclose(rows[:, 0], [0.9, 0, 1.8, 0], rtol=1e-5)
    assert plan.row_samples[0].tolist() == [0, -1, 1, -1]


def test_shards() -> None:
    samples = molecules()[:4]
    plan = energy.plan(PARAMS, samples, differentiable="positions", shards=2)
    slopes = [forces(PARAMS, plan.shard(shard)) for shard in range(2)]
    found = plan.unpack(jax.tree.map(lambda *both: jnp.stack(both), *slopes))
    wanted = gradients(energy.__wrapped__, PARAMS, samples)
    assert_same([one["positions"] for one in found], wanted, rtol=1e-4, atol=1e-6)
    assert_same(plan.unpack(plan.pack(found)), found)


def test_shards_on_a_mesh() -> None:
    samples = molecules()[:2]
    mesh, split = jax.make_mesh((1,), ("data",)), PartitionSpec("data")
    plan = energy.plan(PARAMS, samples, differentiable="positions", shards=1)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split)
    def slopes(params: Any, plan: Any) -> Any:
        return jax.tree.map(lambda rows: rows[None], forces(params, plan.shard(0)))

    params = jax.device_put(PARAMS, jax.NamedSharding(mesh, PartitionSpec()))
    found = plan.unpack(slopes(params, jax.device_put(plan, jax.NamedSharding(mesh, split))))
    wanted = gradients(energy.__wrapped__, PARAMS, samples)
    assert_same([one["positions"] for one in found], wanted, rtol=1e-4, atol=1e-6)


def test_plans_on_a_device_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    plan = next(energy.plans(PARAMS, [molecules()], differentiable="positions", prefetch=0))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(plan))
    assert len(plan.unpack(forces(PARAMS, plan))) == 5


def test_errors() -> None:
    samples = molecules()
    with pytest.raises(ArgumentError, match=r"'place' names no array of floats.*molecule\.positions \(float32\)"):
        energy.plan(PARAMS, samples, differentiable="place")
    with pytest.raises(ArgumentError, match="'kind' names no array of floats"):
        energy.plan(PARAMS, samples, differentiable="kind")
    with pytest.raises(ArgumentError, match="is not the name of an input"):
        energy.plan(PARAMS, samples, differentiable=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="per-sample executor has no differentiable inputs"):
        jitbatch(energy.__wrapped__, executor="per_sample").plan(PARAMS, samples, differentiable="positions")
    plan = energy.plan(PARAMS, samples, differentiable="positions")
    with pytest.raises(PlanError, match="not saved"):
        plan.save("never")
    with pytest.raises(PlanError, match="Save its capacity"):
        pickle.dumps(plan)
    with pytest.raises(PlanError, match=r"outside of jax\.jit"):
        jax.jit(plan.unpack)(plan.inputs)
    with pytest.raises(PlanError, match="1 arrays of differentiable inputs, not 2"):
        plan.with_inputs((*plan.inputs, *plan.inputs))
    with pytest.raises(PlanError, match=r"sample 0: the value at molecule\.positions"):
        plan.pack([{"positions": np.zeros((9, 2))}] * len(samples))
