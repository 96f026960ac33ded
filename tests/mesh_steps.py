"""Run by `test_on_mesh` in a process of its own, on four devices: steps on a mesh against the plain loop. Prints the
names of what was checked."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from zoo import assert_same, random_tree

import jitbatch as jb
from jitbatch import jitbatch

SHAPES = {"embed": (10, 6), "left": (6, 6), "right": (6, 6), "out": (6, 2)}
PARAMS = {name: np.random.default_rng(7).normal(size=s).astype(np.float32) / 3 for name, s in SHAPES.items()}


@jitbatch
def leaf(params: Any, token: Any) -> Array:
    return jnp.tanh(params["embed"][token])


@jitbatch
def compose(params: Any, left: Array, right: Array) -> Array:
    return jnp.tanh(left @ params["left"] + right @ params["right"])


def encode(params: Any, tree: Any, found: list[Any]) -> Array:
    h = compose(params, *(encode(params, t, found) for t in tree)) if isinstance(tree, tuple) else leaf(params, tree)
    found.append(h @ params["out"])
    return h


@jitbatch
def logits(params: Any, tree: Any) -> Array:
    return encode(params, tree, []) @ params["out"]


@jitbatch(out="ragged")
def at_each_node(params: Any, tree: Any) -> list[Array]:
    found: list[Any] = []
    encode(params, tree, found)
    return found


@jitbatch
def noisy(params: Any, tree: Any, key: Any) -> Array:
    return (encode(params, tree, []) * jax.random.bernoulli(key, 0.5, (6,))) @ params["out"]


def minibatch(count: int, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, count)
    trees = [random_tree(rng, int(size), lambda: int(rng.integers(10))) for size in sizes]
    return trees, rng.normal(size=(count, 2)).astype(np.float32)


def loss_of(scores: Array, labels: Any) -> Array:
    return jnp.mean((scores - labels) ** 2)


def update(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def body(params: Any, trees: Any, labels: Any) -> Any:
    value, gradients = jax.value_and_grad(lambda p: loss_of(logits.batch(p, trees), labels))(params)
    return update(params, gradients), value


def plain(params: Any, trees: Any, labels: Any) -> Any:
    def loss(params: Any) -> Array:
        return loss_of(jnp.stack([logits(params, tree) for tree in trees]), labels)

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    return update(params, gradients), value


def check_steps(step: Any, counts: tuple[int, ...]) -> None:
    params = expected = jax.tree.map(jnp.asarray, PARAMS)
    for seed, count in enumerate(counts):
        trees, labels = minibatch(count, seed)
        params, value = step(params, trees, labels)
        expected, want = plain(expected, trees, labels)
        assert_same((params, value), (expected, want), rtol=1e-4, atol=1e-5)


def equal_and_uneven_parts() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    check_steps(jb.jit(body, mesh=mesh), (8, 8, 5, 3))


def set_meshes() -> None:
    explicit = jax.make_mesh((4,), ("data",))
    automatic = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    for mesh in (explicit, automatic):
        with jax.set_mesh(mesh):
            check_steps(jb.jit(body, mesh=mesh, axis="data", rows="labels"), (4, 4))
    on_explicit = jax.device_put(PARAMS, jax.NamedSharding(explicit, jax.P()))
    trees, labels = minibatch(4)
    for context in (nullcontext(), jax.set_mesh(explicit)):
        with context:
            assert_same(
                jb.jit(body, mesh=explicit)(on_explicit, trees, labels), plain(PARAMS, trees, labels), rtol=1e-4
            )


def two_axes() -> None:
    """Parameters may be split over another axis of the mesh."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    params = {name: jax.device_put(p, jax.NamedSharding(mesh, jax.P(None, "model"))) for name, p in PARAMS.items()}
    trees, labels = minibatch(4)
    got = jb.jit(body, mesh=mesh, axis="data")(params, trees, labels)
    assert_same(got, plain(PARAMS, trees, labels), rtol=1e-4, atol=1e-5)


def padding_and_prefetch() -> None:
    """Filled up to one number of samples, one program serves all minibatches, and plans made ahead are used."""

    @jb.jit(samples="trees", pad=8, mesh=jax.make_mesh((4,), ("data",)), rows="labels")
    def step(params: Any, trees: Any, labels: Any) -> Any:
        def loss(params: Any) -> Array:
            errors = jnp.mean((logits.batch(params, trees) - labels) ** 2, axis=1)
            return jnp.vdot(errors, trees.mask) / trees.mask.sum()

        value, gradients = jax.value_and_grad(loss)(params)
        return update(params, gradients), value

    batches = [minibatch(8, 3), minibatch(7, 1), minibatch(1, 2), minibatch(8, 3)]
    params = expected = jax.tree.map(jnp.asarray, PARAMS)
    for (trees, labels), planned in zip(batches, step.prefetch(batches, ahead=1), strict=True):
        params, value = step(params, *planned)
        expected, want = plain(expected, trees, labels)
        assert_same((params, value), (expected, want), rtol=1e-4, atol=1e-5)
    assert step.cache_info()["programs"].misses <= 2


def ragged() -> None:
    mesh = jax.make_mesh((4,), ("data",))

    def total(params: Any, trees: Any) -> Any:
        def loss(params: Any) -> tuple[Array, Any]:
            found = at_each_node.batch(params, trees)
            return jnp.sin(found.sum()).sum(), found

        return jax.value_and_grad(loss, has_aux=True)(params)

    step = jb.jit(total, mesh=mesh)
    for count in (8, 5):
        trees, _ = minibatch(count, 4)
        (value, found), gradients = step(PARAMS, trees)
        plain_loss = lambda p, trees=trees: sum(jnp.sin(sum(at_each_node(p, tree))).sum() for tree in trees)  # noqa: E731
        want = jax.value_and_grad(plain_loss)(PARAMS)
        assert_same((value, gradients), want, rtol=1e-4, atol=1e-5)
        for got, tree in zip(found.to_list(), trees, strict=True):
            assert_same(got, at_each_node(PARAMS, tree), rtol=1e-4, atol=1e-5)


def keys() -> None:
    """Random keys of samples travel in buffers, and dropout is that of the plain loop."""
    trees, _ = minibatch(6)
    keys = list(jax.random.split(jax.random.key(0), 6))
    step = jb.jit(lambda params, trees, keys: noisy.batch(params, trees, keys), mesh=jax.make_mesh((4,), ("data",)))
    want = jnp.stack([noisy(PARAMS, tree, key) for tree, key in zip(trees, keys, strict=True)])
    assert_same(step(PARAMS, trees, keys), want, rtol=1e-4, atol=1e-5)


def accumulated() -> None:
    """Two minibatches of different size in one step, and twice the same samples."""

    def both(params: Any, first: Any, second: Any) -> Any:
        def loss(params: Any, trees: Any) -> Array:
            return jnp.sin(logits.batch(params, trees)).sum()

        total = jax.tree.map(jnp.add, jax.grad(loss)(params, first), jax.grad(loss)(params, second))
        return total, logits.batch(params, first)

    trees, others = minibatch(6)[0], minibatch(4, 1)[0]
    want = jax.grad(lambda p: sum(jnp.sin(logits(p, tree)).sum() for tree in trees + others))(PARAMS)
    got, outputs = jb.jit(both, mesh=jax.make_mesh((4,), ("data",)))(PARAMS, trees, others)
    assert_same(got, want, rtol=1e-4, atol=1e-5)
    assert_same(outputs, jnp.stack([logits(PARAMS, tree) for tree in trees]), rtol=1e-4, atol=1e-5)


def capacities() -> None:
    """A second step with the capacity of the first has its sizes."""
    mesh = jax.make_mesh((4,), ("data",))
    first, second = jb.jit(body, mesh=mesh), jb.jit(body, mesh=mesh)
    first(PARAMS, *minibatch(8, 0))
    second.capacity = jb.StepCapacity.from_json(first.capacity.to_json())
    second(PARAMS, *minibatch(8, 0))
    assert second.capacity == first.capacity
    assert second.cache_info()["rooms"].hits == 1


def other_meshes() -> None:
    """Arrays that are split over the same devices in another way keep their values. NumPy parameters with as many rows
    as there are samples are no rows."""
    mesh = jax.make_mesh((4,), ("data",))
    devices = np.array(jax.devices())
    scaled = jitbatch(lambda weights, x: (weights * x).sum())
    step = jb.jit(lambda w, xs: (scaled.batch(w, xs), w * xs.mask.sum()), mesh=mesh, samples="xs", pad=4)
    weights = np.arange(8, dtype=np.float32)
    for other, axis in (
        (jax.sharding.Mesh(devices[::-1], ("data",)), "data"),
        (jax.sharding.Mesh(devices, ("other",)), "other"),
        (jax.sharding.Mesh(devices.reshape(2, 2), ("data", "model")), "data"),
    ):
        for spec in (jax.P(axis), jax.P()):
            placed = jax.device_put(weights, jax.NamedSharding(other, spec))
            sums, product = step(placed, [1.0, 2.0, 3.0, 4.0])
            assert_same((sums, product), (28.0 * np.arange(1, 5, dtype=np.float32), 4 * weights))
    _, product = step(weights[:3], [1.0, 2.0, 3.0])
    assert_same(product, 3 * weights[:3])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
