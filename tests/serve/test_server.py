"""Answers of a server are those of the plain function, and the server keeps what it promises."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, counted_compilations, named

from jitbatch import Server, Static, clear_caches, jitbatch
from jitbatch.serve.arguments import ServedArguments
from jitbatch.util.errors import ArgumentError, JitbatchError, PlanError, ServerClosed


@jitbatch
def cell(scale: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(scale * x + y)


@jitbatch
def total(scale: Any, tree: Any) -> Any:
    def encode(t: Any) -> Any:
        return cell(scale, *map(encode, t)) if isinstance(t, tuple) else jnp.float32(t)

    return encode(tree)


def random_tree(rng: np.random.Generator, leaves: int) -> Any:
    if leaves == 1:
        return float(rng.integers(50)) / 50
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def random_trees(number: int, most: int = 9, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [random_tree(rng, int(rng.integers(2, most))) for _ in range(number)]


SCALE = jnp.float32(0.5)
TREES = random_trees(60)


def want(tree: Any) -> float:
    return float(total(SCALE, tree))


@pytest.fixture(scope="module")
def warm() -> Iterator[Server]:
    """A server that is left open: with new programs only where a test asks for what nobody else has asked for."""
    with total.serve(SCALE, max_batch_size=16) as server:
        server.warm_up(TREES)
        yield server


# What is answered


@pytest.mark.parametrize(
    "name",
    ["dropout_keys", "ints_and_bools", "mixed_dtypes", "shared_only", "equinox_module", "static_operators"],
)
def test_answers_are_those_of_the_plain_function(name: str) -> None:
    workload = named(name)
    params, samples = workload.draw(4)
    wide = {"rtol": 5e-2, "atol": 5e-2} if workload.low_precision else {}
    with workload.batched.serve(params) as server:
        futures = [server.submit(sample) for sample in samples]
        for sample, future in zip(samples, futures, strict=True):
            assert_same(future.result(), workload.fun(params, sample), **wide)


@pytest.mark.parametrize("out", ["stack", "list", "ragged"])
def test_results_of_different_structures(out: Any) -> None:
    """They cannot be stacked, but each request gets its own."""
    fun = jitbatch(lambda w, xs: [{"z": w * x, "a": x + 1.0} for x in xs], out=out)
    samples = [(1.0, 2.0, 3.0), (), (4.0,), (jnp.ones(2), 5.0)]
    with fun.serve(jnp.float32(2)) as server:
        for sample, future in [(sample, server.submit(sample)) for sample in samples]:
            result = future.result()
            assert_same(result, fun(jnp.float32(2), sample))
            assert all(list(item) == ["z", "a"] for item in result)
            assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(result))


def test_a_result_does_not_hold_the_batch(warm: Server) -> None:
    futures = [warm.submit(tree) for tree in TREES[:9]]
    assert all(future.result().base is None for future in futures)


def test_in_coroutines_and_in_threads(warm: Server) -> None:
    async def ask(tree: Any) -> float:
        return float(await warm(tree, timeout=60))

    async def ask_all() -> list[float]:
        return await asyncio.gather(*map(ask, TREES[:30]))

    np.testing.assert_allclose(asyncio.run(ask_all()), [want(tree) for tree in TREES[:30]], rtol=1e-5)


def test_async_with_closes() -> None:
    async def main() -> float:
        async with total.serve(SCALE) as server:
            answer = float(await server(TREES[0]))
        with pytest.raises(ServerClosed, match="is closed"):
            await server(TREES[0])
        return answer

    np.testing.assert_allclose(asyncio.run(main()), want(TREES[0]), rtol=1e-5)


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_executors(executor: Any) -> None:
    fun = jitbatch(total.__wrapped__, executor=executor)
    with fun.serve(SCALE, max_batch_size=4) as server:
        server.warm_up(TREES[:8])
        futures = [server.submit(tree) for tree in TREES[:8]]
        np.testing.assert_allclose([f.result() for f in futures], list(map(want, TREES[:8])), rtol=1e-5)


def test_effects_run_once_a_sample() -> None:
    seen: list[float] = []

    @jitbatch
    def noted(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return w * x

    with noted.serve(jnp.float32(2)) as server:
        assert [float(server.submit(x).result()) for x in (1.0, 2.0)] == [2.0, 4.0]
        jax.effects_barrier()
    assert seen == [1.0, 2.0]


# Arguments


def test_several_arguments_axes_and_names() -> None:
    @jitbatch(in_axes=(0, None, 1))
    def mixed(x: Any, w: Any, y: Any = 7.0, *, z: Any = 0.0) -> Any:
        return w * x + y - z

    with mixed.serve(jnp.float32(10)) as server:
        requests = [((1.0, 2.0), {}), ((1.0,), {}), ((1.0, 2.0), {"z": 1.0}), ((), {"x": 3.0}), ((5.0,), {"y": 1.0})]
        futures = [server.submit(*args, **kwargs) for args, kwargs in requests]
        assert [float(f.result()) for f in futures] == [12.0, 17.0, 11.0, 37.0, 51.0]
        server.warm_up([1.0, 2.0], z=[0.0, 1.0])
    assert float(mixed.serve(w=2.0).submit(1.0, 2.0).result()) == 4.0


def test_more_positional_arguments_and_methods() -> None:
    fun = jitbatch(lambda w, *xs: w * sum(xs))
    with fun.serve(2.0) as server:
        assert [float(server.submit(*xs).result()) for xs in [(1.0,), (1.0, 2.0), (1.0, 2.0, 3.0)]] == [2.0, 6.0, 12.0]

    class Model:
        def __init__(self, scale: Any) -> None:
            self.scale = scale

        @jitbatch
        def score(self, x: Any) -> Any:
            return self.scale * x

    jax.tree_util.register_pytree_node(Model, lambda model: ((model.scale,), None), lambda _, parts: Model(*parts))
    with Model(jnp.float32(3)).score.serve() as server:
        assert float(server.submit(2.0).result()) == 6.0
        server.update(Model(jnp.float32(4)))
        assert float(server.submit(2.0).result()) == 8.0


def test_wrong_arguments(warm: Server) -> None:
    with pytest.raises(ArgumentError, match=r"missing a required argument: 'tree'; a request to a server of `total`"):
        warm.submit()
    with pytest.raises(ArgumentError, match=r"has the arguments \(tree\)"):
        asyncio.run(warm(TREES[0], SCALE))
    with pytest.raises(ArgumentError, match=r"multiple values for argument 'tree'"):
        warm.submit(1.0, tree=2.0)
    for args, kwargs in [((), {}), ((1.0, 2.0), {}), ((1.0,), {"scale": 2.0}), ((1.0,), {"tree": 2.0})]:
        with pytest.raises(ArgumentError, match=r"is given the shared arguments \(scale\) alone"):
            total.serve(*args, **kwargs)
    with pytest.raises(ArgumentError, match="which has no data"):
        total.serve(jax.ShapeDtypeStruct((), "float32"))
    with pytest.raises(ArgumentError, match="'xs' is partly mapped"):
        jitbatch(lambda xs: xs, in_axes=({"a": None, "b": 0},)).serve()
    with pytest.raises(ArgumentError, match="per_sample"):
        jitbatch(total.__wrapped__, executor="per_sample").serve(SCALE)
    with pytest.raises(ArgumentError, match="no samples to warm up"):
        warm.warm_up([])
    with pytest.raises(ArgumentError, match="an argument before a shared one is left out"):
        jitbatch(lambda w, x=1.0, v=2.0: w * x * v, in_axes=(None, 0, None)).serve(1.0, 2.0).submit()


def test_not_inside_of_transformations(warm: Server) -> None:
    with pytest.raises(ArgumentError, match="values of an outer JAX transformation"):
        jax.jit(lambda scale: total.serve(scale))(SCALE)
    with pytest.raises(ArgumentError, match=r"made inside jax\.jit"):
        jax.jit(lambda x: warm.submit(x))(SCALE)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_batch_size": 0}, "max_batch_size=0"), ({"max_waiting": 1.5}, r"max_waiting=1\.5"),
        ({"max_delay": -1.0}, r"max_delay=-1\.0"), ({"batch_size_fn": 3}, "batch_size_fn=3"),
    ],
)  # fmt: skip
def test_wrong_limits(limits: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        total.serve(SCALE, **limits)


def test_settings_of_one_thread_are_refused() -> None:
    with jax.enable_x64(True):
        server = total.serve(SCALE)
        with pytest.raises(ServerClosed, match=r"settings are changed for one thread"):
            server.submit(TREES[0]).result()


# Failing alone


def test_a_failing_request_fails_alone(warm: Server) -> None:
    before = warm.stats()
    bad = [object(), (1.0, Static("text"))]
    futures = [warm.submit(one) for one in [*TREES[:5], *bad, *TREES[5:9]]]
    for future, tree in zip([*futures[:5], *futures[7:]], TREES[:9], strict=True):
        np.testing.assert_allclose(future.result(), want(tree), rtol=1e-5)
    with pytest.raises(JitbatchError, match=r"sample 0: tree\[0\] is an? object|sample 0: tree"):
        futures[5].result()
    with pytest.raises(TypeError):
        futures[6].result()
    after = warm.stats()
    assert (after.failed - before.failed, after.answered - before.answered) == (2, 9)


# Programs


def test_nothing_compiles_after_warming_up(warm: Server) -> None:
    programs = warm.stats().programs
    with counted_compilations() as made:
        for count in (1, 2, 5, 16, 40):
            futures = [warm.submit(tree) for tree in random_trees(count, seed=count)]
            for future, tree in zip(futures, random_trees(count, seed=count), strict=True):
                np.testing.assert_allclose(future.result(), want(tree), rtol=1e-5)
    assert not made
    assert warm.stats().programs == programs == 3  # for 1, 4 and 16 samples


def test_what_was_not_seen_in_warming_up_runs_too() -> None:
    fun = jitbatch(total.__wrapped__)
    with fun.serve(SCALE, max_batch_size=4) as server:
        server.warm_up(random_trees(10, most=4))
        large = random_trees(3, most=40, seed=5)
        mixed = [*random_trees(5, most=4), *large, (1.0, 2.0, 3.0)[:2]]
        futures = [server.submit(tree) for tree in mixed]
        np.testing.assert_allclose([f.result() for f in futures], list(map(want, mixed)), rtol=1e-4)
        clear_caches()
        np.testing.assert_allclose(server.submit(large[0]).result(), want(large[0]), rtol=1e-4)


def test_sizes_of_batches_by_nodes() -> None:
    def nodes(trees: list[Any]) -> int:
        return sum(len(jax.tree.leaves(tree)) for tree in trees)

    fun = jitbatch(total.__wrapped__)
    with fun.serve(SCALE, max_batch_size=20, batch_size_fn=nodes) as server:
        server.warm_up(TREES)
        programs = server.stats().programs
        trees = [*TREES, *random_trees(1, most=41, seed=3), *TREES]
        futures = [server.submit(tree) for tree in trees[: len(TREES)]]
        np.testing.assert_allclose([f.result() for f in futures], [want(t) for t in trees[: len(TREES)]], rtol=1e-5)
        assert server.stats().programs == programs
        assert server.stats().batches >= nodes(TREES) // 20


# Updates


def test_updates_take_effect_and_compile_nothing(warm: Server) -> None:
    tree = TREES[1]
    warm.submit(tree).result()  # another test has cleared the caches
    with counted_compilations() as made:
        warm.update(jnp.float32(0.25))
        assert float(warm.submit(tree).result()) != want(tree)
        warm.update(SCALE)
        np.testing.assert_allclose(warm.submit(tree).result(), want(tree), rtol=1e-5)
    assert not made
    with pytest.raises(PlanError, match=r"scale was float32\[\], is float32\[2\]"):
        warm.update(jnp.ones(2))
    np.testing.assert_allclose(warm.submit(tree).result(), want(tree), rtol=1e-5)


def test_arrays_of_numpy_are_copied() -> None:
    weights = np.ones(3, np.float32)
    with jitbatch(lambda params, x: (params["w"] * x).sum()).serve({"w": weights}) as server:
        weights[:] = 7
        assert float(server.submit(2.0).result()) == 6.0


# Numbers


def test_stats_and_repr(warm: Server) -> None:
    warm.submit(TREES[0]).result()
    stats = warm.stats()
    assert stats.accepted == stats.answered + stats.failed + stats.cancelled + stats.waiting + stats.running
    assert 0 < stats.p50 <= stats.p99
    assert repr(warm).startswith("<server of `total`")
    fresh = total.serve(SCALE)
    assert (fresh.stats().p50, fresh.stats().accepted) == (0.0, 0)
    fresh.close()
    assert repr(fresh).endswith("0 waiting, 0 answered>")


def test_signatures_by_themselves() -> None:
    served = ServedArguments("`f`", inspect.signature(lambda a, /, b, c=1, *d, e=2: None), None, is_method=False)
    assert list(served.shared((1.0,), {}).objects) == ["a"]
