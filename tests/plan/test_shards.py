"""Plans for several devices: equal static parts, one shard a device, no loop in which devices wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from zoo import assert_same, keyed_sequences, named, projected, random_tree, tree_params

from jitbatch import jitbatch
from jitbatch.plan.shards import split
from jitbatch.util.errors import OutputError, PlanError

HERE = Path(__file__).parents[1]
TREE = named("binary_tree")
TREES = jitbatch(TREE.fun)
PARAMS = tree_params(jax.random.key(0))


def trees(*sizes: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [random_tree(rng, size, lambda: int(rng.integers(7))) for size in sizes]


def test_samples_are_split_in_order() -> None:
    assert [list(range(6))[part] for part in split(6, 3)] == [[0, 1], [2, 3], [4, 5]]
    for count, shards in ((5, 2), (4, 0), (2, 4)):
        with pytest.raises(PlanError, match=f"{count} samples cannot be split into {shards} shards of equal size"):
            TREES.plan(PARAMS, trees(*[2] * count), shards=shards)


@pytest.mark.parametrize("sizes", [(9, 5, 2, 1), (1, 1, 1, 9), (1, 2, 3, 4), (2, 2, 2, 2)])
def test_each_shard_runs_its_samples(sizes: tuple[int, ...]) -> None:
    samples = trees(*sizes)
    want = TREE.loop(PARAMS, samples)
    run = jax.jit(lambda plan: TREES.batch(PARAMS, plan))
    for shards in (1, 2, 4):
        plan = TREES.plan(PARAMS, samples, shards=shards)
        assert all(len(leaf) == shards for leaf in jax.tree.leaves(plan))
        assert plan.summary.samples == 4
        got = [run(plan.shard(i)) for i in range(shards)]
        assert_same(jnp.concatenate(got), want)


def test_a_plan_says_that_it_is_sharded() -> None:
    plan = TREES.plan(PARAMS, trees(9, 5, 2, 1), shards=2)
    assert repr(plan).startswith("Plan(4 samples in 2 shards: ")
    assert str(plan) == repr(plan)
    with pytest.raises(PlanError, match=r"the plan has 2 shards, of which one is run at a time: `plan.shard\(i\)`"):
        TREES.batch(PARAMS, plan)


def test_a_plan_of_shards_is_like_another() -> None:
    large = TREES.plan(PARAMS, trees(9, 5, 2, 1), shards=2)
    assert TREES.plan(PARAMS, trees(1, 1, 2, 3), shards=2, like=large).static == large.static


def test_shards_of_inputs_that_others_lack() -> None:
    """Keys and words are inputs of classes that only one of the shards has."""

    @jitbatch
    def number(params: Any, sample: Any) -> Array:
        if "key" in sample:
            return jax.random.normal(sample["key"]) + params["out"].sum()
        return params["embed"][sample["word"]].sum()

    keys = keyed_sequences(np.random.default_rng(0), 2)
    samples = [{"key": one["key"]} for one in keys] + [{"word": 1}, {"word": 2}]
    plan = number.plan(PARAMS, samples, shards=2)
    want = [number(PARAMS, sample) for sample in samples]
    got = [number.batch(PARAMS, plan.shard(i)) for i in range(2)]
    assert_same(jnp.concatenate(got), jnp.stack(want))


def test_results_of_different_structure_are_told_among_all_samples() -> None:
    batched = jitbatch(lambda params, xs: params["out"][0] * xs)
    with pytest.raises(OutputError, match="sample 3 has the result"):
        batched.plan(PARAMS, [1.0, 2.0, 3.0, np.ones((2, 3), np.float32)], shards=2)


def test_dispatch_has_no_shards_of_different_shapes() -> None:
    dispatch = jitbatch(TREE.fun, executor="dispatch")
    with pytest.raises(PlanError, match="Shards need the fused executor"):
        dispatch.plan(PARAMS, trees(9, 1), shards=2)


@pytest.mark.parametrize("mapping", [jax.vmap, lambda fun: lambda plan: jax.lax.map(fun, plan)], ids=["vmap", "map"])
def test_shards_on_one_device(mapping: Any) -> None:
    samples = trees(9, 5, 2, 1)
    plan = TREES.plan(PARAMS, samples, shards=2)

    @jax.jit
    @jax.value_and_grad
    def got(params: Any) -> Array:
        return projected(mapping(lambda plan: TREES.batch(params, plan))(plan))

    want = jax.value_and_grad(lambda p: projected(TREE.loop(p, samples).reshape(2, 2, -1)))(PARAMS)
    assert_same(got(PARAMS), want, rtol=1e-4, atol=1e-5)


def test_nothing_is_cast_outside_of_shard_map() -> None:
    plan = TREES.plan(PARAMS, trees(3, 2))
    program = str(jax.make_jaxpr(jax.grad(lambda params, plan: TREES.batch(params, plan).sum()))(PARAMS, plan))
    assert "while" in program
    assert "pvary" not in program
    assert "pcast" not in program


CHECKED = ("binary_tree", "einsum_and_activations", "custom_vjp_inside", "scan_in_cell", "cond_in_cell")


def test_gradients_on_two_devices() -> None:
    """Loops of different lengths on two devices; a sum over devices in one of them would never end."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    ran = subprocess.run(
        [sys.executable, str(HERE / "sharded.py"), *CHECKED],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert tuple(ran.stdout.split()) == CHECKED
