"""JAX, sample by sample: one jitted program for each structure, compiled before; or nothing compiled.

    python jax_loop.py [eager]

Gradients are summed over the samples of a minibatch. Those of embeddings are of a sample's own rows alone: a gradient
of all embeddings for each sample would take longer than the rest.
"""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_models import numbers, workload_of
from worker import LEARNING_RATE, Runner, Task, serve

EAGER = "eager" in sys.argv[1:]


def pack(sample: Any) -> tuple[Any, list[np.ndarray]]:
    """A sample as a structure and one array for each dtype: JAX takes some microseconds for each argument. The first
    array has all numbers that are no arrays, which in trees are the tokens."""
    leaves, tree = jax.tree.flatten(sample)
    tokens = np.array([leaf for leaf in leaves if np.ndim(leaf) == 0], np.int32)
    arrays = [leaf for leaf in leaves if np.ndim(leaf)]
    structure = tree, tuple(None if np.ndim(leaf) == 0 else np.shape(leaf) for leaf in leaves)
    return structure, [tokens, np.concatenate(arrays) if arrays else np.zeros(0, np.int32)]


def unpack(structure: Any, tokens: jax.Array, arrays: jax.Array) -> Any:
    tree, shapes = structure
    scalars, leaves, start = iter(list(tokens)), [], 0
    for shape in shapes:
        if shape is None:
            leaves.append(next(scalars))
        else:
            leaves.append(arrays[start : start + shape[0]])
            start += shape[0]
    return tree.unflatten(leaves)


def make(task: Task) -> Runner:
    workload = workload_of(task)
    function: Any = workload.model.__wrapped__
    params = jax.tree.map(jnp.copy, workload.params)
    has_table = isinstance(params, dict)  # its embeddings are under "embed", and a sample's tokens are rows of it

    def of_sample(params: Any, structure: Any, tokens: jax.Array, arrays: jax.Array, training: bool) -> Any:
        if has_table:
            params = params | {"embed": params["embed"][tokens]}
            positions = jnp.arange(len(tokens))
        else:
            positions = tokens

        def loss(params: Any) -> jax.Array:
            return function(params, unpack(structure, positions, arrays))

        return jax.value_and_grad(loss)(params) if training else (loss(params), None)

    def added(total: Any, grads: Any, tokens: jax.Array) -> Any:
        if not has_table:
            return jax.tree.map(jnp.add, total, grads)
        rows = grads.pop("embed")
        table = total.pop("embed").at[tokens].add(rows)
        return jax.tree.map(jnp.add, total, grads) | {"embed": table}

    def updated(params: Any, total: Any, number: int) -> Any:
        return jax.tree.map(lambda p, g: p - LEARNING_RATE / number * g, params, total)

    add, update, zeros = (
        jax.jit(added, donate_argnums=0),
        jax.jit(updated),
        jax.jit(partial(jax.tree.map, jnp.zeros_like)),
    )
    program = of_sample if EAGER else jax.jit(of_sample, static_argnums=(1, 4))

    def run(batches: list[list[Any]], training: bool) -> list[float]:
        nonlocal params
        losses = []
        for batch in batches:
            total, loss = zeros(params) if training else None, jnp.float32(0)
            for structure, (tokens, arrays) in batch:
                value, grads = program(params, structure, tokens, arrays, training)
                loss += value
                if training:
                    total = add(total, grads, tokens)
            if training:
                params = update(params, total, len(batch))
            losses.append(loss / len(batch))
        return numbers(losses)

    return Runner([pack(sample) for sample in workload.samples[: task.distinct]], run)


serve(make, "jax", "jaxlib")
