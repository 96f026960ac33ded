"""Run by `test_mesh` in a process of its own, on four devices: batches on a mesh with explicit axes, against the plain
loop with the same objects. Prints the names of what was checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P
from zoo import assert_same

from jitbatch import jitbatch

MESH = jax.make_mesh((2,), ("data",))
SHAPES = {"embed": (8, 4), "left": (4, 4), "right": (4, 4), "out": (4, 2)}
TREES = [((1, 2), 3), (4, (1, 2)), 5, (6, 7)]
EXECUTORS = ("dispatch", "fused", "per_sample")
SHARDED = {"embed": P(None, "data"), "left": P("data"), "right": P(None, "data"), "out": P()}


@jitbatch
def leaf(params: Any, token: Any) -> Array:
    return jax.reshard(jnp.tanh(params["embed"][token]), jax.NamedSharding(MESH, P()))


@jitbatch
def compose(params: Any, left: Array, right: Array) -> Array:
    everywhere = jax.NamedSharding(MESH, P())
    left = jnp.dot(left, params["left"], out_sharding=everywhere)
    return jnp.tanh(left + jax.reshard(right @ params["right"], everywhere))


def logits(params: Any, tree: Any) -> Array:
    def encode(t: Any) -> Array:
        return compose(params, *map(encode, t)) if isinstance(t, tuple) else leaf(params, t)

    return encode(tree) @ params["out"]


def parameters(specs: dict[str, Any]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        name: jax.device_put(rng.normal(size=shape).astype(np.float32) / 2, jax.NamedSharding(MESH, specs[name]))
        for name, shape in SHAPES.items()
    }


def in_loop(fun: Callable[..., Any], params: Any, samples: Any) -> Array:
    return jnp.stack([fun(params, sample) for sample in samples])


def same(got: Any, want: Any) -> None:
    """Equal values, and for what was differentiated, of equal types."""
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want), jax.tree.map(jax.typeof, (got, want))
    assert_same(jax.tree.map(np.asarray, got), jax.tree.map(np.asarray, want), rtol=1e-4, atol=1e-5)


def samples_and_plans(specs: dict[str, Any], is_set: bool) -> None:
    with jax.set_mesh(MESH) if is_set else nullcontext():
        params = parameters(specs)

        def with_gradient(run: Callable[[Any], Array]) -> Any:
            return jax.value_and_grad(lambda params: jnp.sum(jnp.sin(run(params))))

        # Without `jax.set_mesh`, JAX differentiates nothing on a mesh outside of `jax.jit`.
        want = jax.jit(with_gradient(lambda params: in_loop(logits, params, TREES)))(params)
        for executor in EXECUTORS:
            batched = jitbatch(logits, executor=executor)
            same(batched.batch(params, TREES), in_loop(logits, params, TREES))
            plan = batched.plan(params, TREES)
            same(jax.jit(with_gradient(lambda params, run=batched: run.batch(params, TREES)))(params), want)
            for placed in (plan, jax.device_put(plan, jax.NamedSharding(MESH, P()))):
                step = jax.jit(lambda params, plan, run=batched: with_gradient(lambda p: run.batch(p, plan))(params))
                same(step(params, placed), want)
            if is_set:
                same(with_gradient(lambda params, run=batched: run.batch(params, TREES))(params), want)
                same(with_gradient(lambda params, run=batched, plan=plan: run.batch(params, plan))(params), want)
                batched.check(params, TREES)
        jitbatch(logits).explain(params, TREES, measure=True)


def sharded() -> None:
    samples_and_plans(SHARDED, is_set=True)


def replicated() -> None:
    samples_and_plans(dict.fromkeys(SHAPES, P()), is_set=True)


def mesh_that_is_not_set() -> None:
    samples_and_plans(SHARDED, is_set=False)


def samples_on_a_mesh() -> None:
    """Samples that lie on the mesh, whole and row by row, and gradients with respect to them."""

    def total(params: Any, rows: Array) -> Any:
        return sum(jnp.tanh(row @ params["right"]) for row in rows)

    with jax.set_mesh(MESH):
        params = parameters(SHARDED)
        rows = [jnp.full((count, 4), count / 4, jnp.float32) for count in (1, 3, 2, 3)]
        stacked = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 2, 4)
        by_sample = jax.device_put(stacked, jax.NamedSharding(MESH, P("data")))
        for executor in EXECUTORS:
            batch = jitbatch(total, executor=executor).batch
            same(
                jax.grad(lambda rows, run=batch: run(params, rows).sum())(rows),
                jax.grad(lambda rows: in_loop(total, params, rows).sum())(rows),
            )
            want = jax.grad(lambda rows: in_loop(total, params, rows).sum())(stacked)
            got = jax.grad(lambda rows, run=batch: run(params, rows).sum())(by_sample)
            assert jax.typeof(got) == jax.typeof(by_sample)
            assert_same(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


def closed_over() -> None:
    """Arrays on the mesh that a sample closes over, alone and in jits, loops and functions with derivatives."""
    with jax.set_mesh(MESH):
        params = parameters(SHARDED)
        weights = params["right"]
        scale, number = jnp.arange(4.0), jnp.float32(2)
        everywhere = jax.reshard(weights, P())

        @jax.jit
        def layer(x: Array) -> Array:
            return jax.nn.relu(x @ everywhere + scale)

        def fun(params: Any, token: Any) -> Array:
            x = jnp.where(scale > 1, params["out"][token, 0], number) * jax.nn.gelu(scale)
            x = jax.lax.scan(lambda h, _: (jnp.tanh(h @ everywhere), None), layer(x), None, length=2)[0]
            return jnp.einsum("i,ij->j", x, weights)

        def through(weights: Array, run: Callable[[Any], Array]) -> Array:
            return run(lambda params, token: params["out"][token, 0] * jnp.sum(weights * weights)).sum()

        want = jax.value_and_grad(lambda params: in_loop(fun, params, [0, 1, 2]).sum())(params)
        want_through = jax.grad(through)(weights, lambda fun: in_loop(fun, params, [0, 1]))
        for executor in EXECUTORS:
            decorate: Any = jitbatch(executor=executor)
            batch = decorate(fun).batch
            same(jax.value_and_grad(lambda params, run=batch: run(params, [0, 1, 2]).sum())(params), want)
            got = jax.grad(through)(weights, lambda fun, decorate=decorate: decorate(fun).batch(params, [0, 1]))
            same(got, want_through)


def shards() -> None:
    """Plans for all devices, under `jax.shard_map` and one after the other."""

    def plain(params: Any, tree: Any) -> Any:
        def encode(t: Any) -> Any:
            return jnp.tanh(encode(t[0]) @ params["left"] + encode(t[1])) if isinstance(t, tuple) else embed(params, t)

        return encode(tree) @ params["out"]

    embed = jitbatch(lambda params, token: params["embed"][token])
    batched = jitbatch(plain)
    for is_set in (True, False):
        with jax.set_mesh(MESH) if is_set else nullcontext():
            params = parameters(dict.fromkeys(SHAPES, P()))
            plan = jax.device_put(batched.plan(params, TREES, shards=2), jax.NamedSharding(MESH, P("data")))

            def loss(params: Any, plan: Any) -> Array:
                return jax.lax.psum(batched.batch(params, plan.shard(0)).sum(), "data")

            def mapped(fun: Any, out_specs: Any) -> Any:
                return jax.shard_map(fun, mesh=MESH, in_specs=(P(), P("data")), out_specs=out_specs)

            def one_by_one(params: Any, plan: Any) -> Any:
                return sum(batched.batch(params, plan.shard(i)).sum() for i in range(2))

            want = jax.jit(jax.value_and_grad(lambda params: in_loop(plain, params, TREES).sum()))(params)
            same(jax.jit(mapped(jax.value_and_grad(loss), (P(), P())))(params, plan), want)
            same(jax.jit(jax.value_and_grad(mapped(loss, P())))(params, plan), want)
            same(jax.jit(jax.value_and_grad(one_by_one))(params, plan), want)


def partly_manual() -> None:
    """One axis of the mesh is `jax.shard_map`'s, parameters are sharded over the other."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    total = jitbatch(lambda params, rows: sum(jnp.tanh(row @ params) for row in rows))
    rows = [np.full((count, 4), count / 4, np.float32) for count in (1, 3, 2, 3)]
    with jax.set_mesh(mesh):
        params = jax.device_put(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4), P(None, "model"))
        plan = jax.device_put(total.plan(params, rows, shards=2), P("data"))

        def gradient(params: Any, plan: Any) -> Any:
            return jax.grad(lambda p: jax.lax.psum(total.batch(p, plan.shard(0)).sum(), "data"))(params)

        mapped = jax.shard_map(gradient, in_specs=(P(), P("data")), out_specs=P(), axis_names={"data"})
        want = jax.grad(lambda params: in_loop(total, params, rows).sum())(params)
        same(jax.jit(mapped)(params, plan), want)


def named_axes_are_told() -> None:
    with jax.set_mesh(MESH):
        params = parameters(SHARDED)
        for executor in EXECUTORS:
            batched = jitbatch(lambda params, token: jax.reshard(params["out"][token], P()), executor=executor)
            try:
                batched.batch(params, [1, 2])
            except ValueError as error:
                told = "\n".join(error.__notes__)
                assert "Give a `jax.NamedSharding(mesh, spec)` in place of the PartitionSpec" in told
            else:
                raise AssertionError("a batch knows no axes")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
