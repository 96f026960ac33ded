"""Keys: rows of splits and what is folded in are data, so that numbers of children make no types; `Keys`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import JitbatchError, Keys, jitbatch
from jitbatch.record.key_splits import folds
from jitbatch.util.compat import trace_context

H = 3
W = {"w": np.float32(np.random.default_rng(0).normal(size=(H, H))), "e": np.float32(np.eye(5, H))}
TREES = [0, [1, 2], [[1], 2, [3, 0, 4]], [[0, 1, 2, 3], [2]], [[1, 1, 1]]]
FEW = [[1, 2]], [[1, [0, 2, 1]]]


def keys_of(samples: list[Any], impl: str | None = None) -> list[Any]:
    return list(jax.random.split(jax.random.key(0, impl=impl), len(samples)))


def bits_of(samples: list[Any]) -> list[Any]:
    return list(jax.random.split(jax.random.PRNGKey(0), len(samples)))


@jitbatch
def leaf(p: Any, token: Any) -> Any:
    return p["e"][token]


@jitbatch
def cell(p: Any, key: Any, children: list[Any]) -> Any:
    h = jnp.tanh(sum(children, jnp.zeros(H)) @ p["w"])
    return jnp.where(jax.random.bernoulli(key, 0.5, (H,)), h, 0.0)


def indexed(p: Any, key: Any, tree: Any) -> Any:
    if not isinstance(tree, list):
        return leaf(p, tree)
    keys = jax.random.split(key, len(tree) + 1)
    return cell(p, keys[0], [indexed(p, keys[i + 1], child) for i, child in enumerate(tree)])


def sliced(p: Any, key: Any, tree: Any) -> Any:
    if not isinstance(tree, list):
        return leaf(p, tree)
    keys = jax.random.split(key, len(tree) + 1)
    return cell(p, keys[-1], [sliced(p, k, child) for k, child in zip(keys[:-1], tree, strict=True)])


def unpacked(p: Any, key: Any, tree: Any) -> Any:
    """Bare operations, and a split of a split in one place."""
    if not isinstance(tree, list):
        return p["e"][tree]
    own, others = jax.random.split(key)
    first, *rest = jax.random.split(others, len(tree))
    h = jnp.tanh(sum([unpacked(p, k, child) for k, child in zip([first, *rest], tree, strict=True)]) @ p["w"])
    return h * jax.random.bernoulli(own, 0.5, (H,))


@jitbatch
def decorated(p: Any, key: Any, tree: Any) -> Any:
    """A decorated recursion: subtrees that come again are copied."""
    if not isinstance(tree, list):
        return leaf(p, tree)
    keys = jax.random.split(key, len(tree) + 1)
    return cell(p, keys[0], [decorated(p, k, child) for k, child in zip(keys[1:], tree, strict=True)])


def folded(p: Any, key: Any, tree: Any) -> Any:
    if not isinstance(tree, list):
        return leaf(p, tree)
    children = [folded(p, jax.random.fold_in(key, i + 1), child) for i, child in enumerate(tree)]
    return cell(p, jax.random.fold_in(key, 0), children)


def counted(p: Any, key: Any, tree: Any) -> Any:
    keys = Keys(key)

    def walk(tree: Any) -> Any:
        return cell(p, keys(), [walk(child) for child in tree]) if isinstance(tree, list) else leaf(p, tree)

    return walk(tree)


PROGRAMS = [indexed, sliced, unpacked, decorated, folded, counted]


@pytest.mark.parametrize("make_keys", [keys_of, bits_of])
@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: getattr(fun, "__name__", "decorated"))
def test_the_number_of_keys_makes_no_types(fun: Any, make_keys: Any) -> None:
    batched = jitbatch(getattr(fun, "__wrapped__", fun), policy="depth")
    few, many = ([[1, 2], [[0, 1], 2]], [*TREES, [[1, 2], [[0, 1], 2]], [0] * 9])
    types = [batched.plan(W, make_keys(some), some).summary.types for some in (few, many)]
    assert types[0] == types[1] <= 8


@pytest.mark.parametrize("make_keys", [keys_of, bits_of])
@pytest.mark.parametrize("executor", ["dispatch", "fused"])
@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: getattr(fun, "__name__", "decorated"))
def test_values_and_gradients_are_those_of_the_loop(fun: Any, executor: Any, make_keys: Any) -> None:
    keys, plain = make_keys(TREES), getattr(fun, "__wrapped__", fun)
    batched = jitbatch(plain, executor=executor)
    plan = batched.plan(W, keys, TREES)
    want = gradients(lambda p, _: stack([plain(p, k, t) for k, t in zip(keys, TREES, strict=True)]), W, [])
    got = gradients(lambda p, _: batched.batch(p, plan), W, [], transform=jax.jit)
    assert_same(got, want)


@pytest.mark.parametrize("partitionable", [True, False])
def test_rows_of_a_split_are_folds_where_jax_makes_them_so(partitionable: bool) -> None:
    with jax.threefry_partitionable(partitionable):
        of_impl = {impl: jax.random.key(0, impl=impl).dtype for impl in ("threefry2x32", "rbg", "unsafe_rbg")}
        found = {impl: folds(str(dtype), trace_context()) for impl, dtype in of_impl.items()}
    assert found == {"threefry2x32": partitionable, "rbg": partitionable, "unsafe_rbg": False}


# JAX splits keys of `unsafe_rbg` under `jax.vmap` in another way than one by one.
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("partitionable", [True, False])
def test_keys_of_a_split_are_those_of_the_loop(impl: str, partitionable: bool) -> None:
    with jax.threefry_partitionable(partitionable):
        keys = keys_of(TREES, impl)

        def some(_: Any, key: Any, tree: Any) -> Any:
            count = len(tree) if isinstance(tree, list) else 1
            first, *others = jax.random.split(key, count + 1)
            return [jax.random.key_data(one) for one in (first, others[-1], jax.random.split(first, 3)[1])]

        got = jitbatch(some).batch(None, keys, TREES)
        want = [some(None, k, tree) for k, tree in zip(keys, TREES, strict=True)]
        for one, *others in zip(got, *want, strict=True):
            np.testing.assert_array_equal(one, others)


def test_a_split_that_something_reads_as_a_whole_is_a_split() -> None:
    def fun(w: Any, key: Any, xs: Any) -> Any:
        keys = jax.random.split(key, len(xs))
        drawn = jax.vmap(jax.random.normal)(keys)
        return drawn.sum() * w + sum(jax.random.normal(k) * x for k, x in zip(keys, xs, strict=True))

    samples = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    keys = keys_of(samples)
    want = [fun(2.0, k, xs) for k, xs in zip(keys, samples, strict=True)]
    np.testing.assert_allclose(jitbatch(fun).batch(2.0, keys, samples), want, rtol=1e-5)


def test_keys_that_samples_share_are_split_once() -> None:
    def fun(p: Any, x: Any) -> Any:
        first, second = jax.random.split(p["key"])
        return x * jax.random.normal(first) + jax.random.normal(second)

    params = {"key": jax.random.key(3)}
    np.testing.assert_allclose(jitbatch(fun).batch(params, [1.0, 2.0]), [fun(params, x) for x in (1.0, 2.0)], rtol=1e-6)


# --- Keys


def test_keys_are_those_of_folding_in() -> None:
    key = jax.random.key(1)
    keys = Keys(key)
    for count in range(3):
        assert keys() == jax.random.fold_in(key, count)
    assert repr(keys).endswith("3 taken)")


def test_a_decorated_function_can_make_keys_of_its_own() -> None:
    @jitbatch
    def inner(w: Any, key: Any, x: Any) -> Any:
        keys = Keys(key)
        return w * jax.random.normal(keys()) + x * jax.random.normal(keys())

    def fun(w: Any, key: Any, xs: Any) -> Any:
        keys = Keys(key)
        inside_a_gradient = jax.grad(lambda y: jax.random.normal(keys()) * y * y)
        return sum(inner(w, keys(), x) + inside_a_gradient(x) for x in xs)

    samples = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    keys = keys_of(samples)
    want = [fun(2.0, k, xs) for k, xs in zip(keys, samples, strict=True)]
    np.testing.assert_allclose(jitbatch(fun).batch(2.0, keys, samples), want, rtol=1e-5)


@jitbatch
def taking(w: Any, keys: Any, x: Any) -> Any:
    return w * x * jax.random.normal(keys())


def passed_on(w: Any, key: Any, xs: Any) -> Any:
    keys = Keys(key)
    return sum(taking(w, keys, x) for x in xs)


def closed_over(w: Any, key: Any, xs: Any) -> Any:
    keys = Keys(key)
    inner = jitbatch(lambda w, x: w * x * jax.random.normal(keys()))
    return sum(inner(w, x) for x in xs)


OUTSIDE = Keys(jax.random.key(0))


def from_outside(w: Any, key: Any, xs: Any) -> Any:
    return w * xs[0] * jax.random.normal(OUTSIDE())


@pytest.mark.parametrize("fun", [passed_on, closed_over, from_outside])
def test_keys_are_counted_where_they_are_made(fun: Any) -> None:
    samples = [[1.0, 2.0], [3.0]]
    with pytest.raises(
        JitbatchError, match=r"while sample 0 of .* was recorded.*`cell\(params, keys\(\), x\)`"
    ) as info:
        jitbatch(fun).batch(2.0, keys_of(samples), samples)
    assert isinstance(info.value, RuntimeError)
