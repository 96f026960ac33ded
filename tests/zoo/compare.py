"""How results are compared: values and gradients, to tolerance and bit for bit; compilations, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def stack(outputs: Sequence[Any]) -> Any:
    """Per-sample outputs stacked on axis 0, leaf by leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *outputs)


def is_float(leaf: Any) -> bool:
    """Whether a leaf can be differentiated: a float array or a Python float."""
    if not isinstance(leaf, float | np.ndarray | np.generic | jax.Array):
        return False
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def split_floats(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The float leaves of a pytree, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_float(leaf)]

    def rebuild(floats: Sequence[Any]) -> Any:
        changed = list(leaves)
        for place, value in zip(places, floats, strict=True):
            changed[place] = value
        return jax.tree.unflatten(treedef, changed)

    return [leaves[place] for place in places], rebuild


def projected(outputs: Any) -> Array:
    """A scalar loss: the float leaves of the outputs projected on fixed random directions."""
    rng = np.random.default_rng(1234)
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(outputs):
        direction = rng.normal(size=jnp.shape(leaf)).astype(np.float32)
        if is_float(leaf):
            total = total + jnp.sum(jnp.asarray(leaf, jnp.float32) * direction)
    return total


def gradients(
    run: Callable[[Any, list[Any]], Any],
    params: Any,
    samples: list[Any],
    float_inputs: bool = False,
    transform: Callable[[Any], Any] = lambda fun: fun,
) -> tuple[Any, Any]:
    """The values of `run(params, samples)`, and the gradients of a projection of them for the float leaves.

    `transform` is applied to the function that computes both; `jax.jit` makes one program of it.
    """
    weights, with_weights = split_floats(params)
    inputs, with_inputs = split_floats(samples)

    def loss(weights: list[Any], inputs: list[Any] | None = None) -> tuple[Array, Any]:
        values = run(with_weights(weights), samples if inputs is None else with_inputs(inputs))
        return projected(values), values

    if float_inputs:
        (_, values), grads = transform(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(weights, inputs)
    else:
        (_, values), grads = transform(jax.value_and_grad(loss, has_aux=True))(weights)
    return values, grads


def assert_same(got: Any, want: Any, *, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Equal structure, shapes and dtypes; floats to tolerance, everything else exactly."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        a, b = jnp.asarray(a), jnp.asarray(b)
        where = f"at {jax.tree_util.keystr(path) or 'the root'}"
        assert a.shape == b.shape, f"{where}: shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, not {b.dtype}"
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if jnp.issubdtype(a.dtype, jnp.floating):
            a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=where)
        else:
            np.testing.assert_array_equal(a, b, err_msg=where)


@contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Collects one entry for each XLA compilation."""
    compilations: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def assert_bits(got: Any, want: Any) -> None:
    """Equal bit for bit."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes(), f"{a} is not {b}, bit for bit"
