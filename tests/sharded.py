"""Run by `test_shards` in a process of its own, on two devices: values and gradients under `jax.shard_map`, with its
checks, are the plain loop's. Prints the names of what was checked."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from zoo import assert_same, named, projected, random_tree, stack

from jitbatch import jitbatch

SHARDS = 2
ALL, OWN = PartitionSpec(), PartitionSpec("data")


def deep_and_shallow() -> list[Any]:
    """The first shard's loop has many more rounds than the second's."""
    rng = np.random.default_rng(0)
    return [random_tree(rng, leaves, lambda: int(rng.integers(7))) for leaves in (20, 12, 2, 1)]


def check(name: str) -> None:
    entry = named(name)
    params, samples = entry.draw(4)
    if name == "binary_tree":
        samples = deep_and_shallow()
    batched = jitbatch(entry.fun)
    plan = batched.plan(params, samples, shards=SHARDS)
    mesh = jax.make_mesh((SHARDS,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(params: Any, plan: Any) -> tuple[Array, Any]:
        values = batched.batch(params, plan.shard(0))
        return jax.lax.psum(projected(values), "data"), values

    def value_and_grad(params: Any, plan: Any) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(params, plan)

    def reference(params: Any) -> tuple[Array, Any]:
        values = [entry.fun(params, sample) for sample in samples]
        half = len(values) // SHARDS
        return projected(stack(values[:half])) + projected(stack(values[half:])), stack(values)

    want = jax.value_and_grad(reference, has_aux=True)(params)
    inside = jax.shard_map(value_and_grad, mesh=mesh, in_specs=(ALL, OWN), out_specs=((ALL, OWN), ALL))
    assert_same(jax.jit(inside)(params, plan), want, rtol=1e-4, atol=1e-5)
    if name != "binary_tree":
        return
    outside = jax.shard_map(loss, mesh=mesh, in_specs=(ALL, OWN), out_specs=(ALL, OWN))
    assert_same(jax.jit(jax.value_and_grad(outside, has_aux=True))(params, plan), want, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        check(name)
        print(name, flush=True)
