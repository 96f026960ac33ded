"""Cells of array operations: convolutions, einsum, updates in place; delicate derivatives; cells that look alike."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jitbatch import jitbatch
from zoo.draw import long_sequences, normal, sequences, vector_trees, weights
from zoo.recurrent import rnn_params
from zoo.workloads import HIDDEN, INPUT, Params, Tree, workload


@jitbatch
def conv_cell(params: Params, image: Array) -> Array:
    image = jnp.pad(image, ((0, 0), (1, 1), (1, 1)))
    out = lax.conv_general_dilated(image[None], params["kernel"], window_strides=(2, 2), padding="VALID")
    return jax.nn.silu(out[0] + params["bias"][:, None, None])


@workload(
    weights(kernel=(2, 2, 3, 3), bias=(2,)),
    lambda rng, n: [normal(rng, 2, 2 << i % 2, 2 << i % 2) for i in range(n)],
    float_inputs=True,
)
@jitbatch
def convolution(params: Params, image: Array) -> Array:
    """As many convolutions as the image's size asks for: Python control flow on shapes."""
    while image.shape[1] > 1:
        image = conv_cell(params, image)
    return image.mean((1, 2))


@jitbatch
def bilinear_cell(params: Params, x: Array, y: Array) -> Array:
    return jax.nn.gelu(jnp.einsum("i,ijk,j->k", x, params["cube"], y))


@workload(weights(cube=(INPUT, INPUT, INPUT), w=(INPUT, INPUT)), vector_trees, float_inputs=True)
@jitbatch
def einsum_and_activations(params: Params, tree: Tree) -> Array:
    """einsum, relu, silu, gelu and others, inside cells and between them."""
    if not isinstance(tree, tuple):
        return jax.nn.silu(tree) + jax.nn.softplus(tree)
    left, right = (einsum_and_activations(params, child) for child in tree)
    joined = bilinear_cell(params, jax.nn.relu(left), jax.nn.leaky_relu(right))
    return jax.nn.standardize(joined + jax.nn.elu(left) + jnp.einsum("ij,j->i", params["w"], right))


@jitbatch
def delicate_cell(params: Params, x: Array, h: Array) -> Array:
    h = jnp.log(x @ jnp.exp(params["x"])) + h
    return h / jnp.sqrt(jnp.sum(h * h)) + 1.0 / x.sum()


@workload(rnn_params, lambda rng, n: [jnp.abs(xs) + 0.5 for xs in sequences(rng, n)], float_inputs=True)
@jitbatch
def delicate_cells(params: Params, xs: Array) -> Array:
    """Logarithms, roots and quotients, whose derivatives at zero are not finite: padding must not show."""
    h = params["h0"]
    for x in xs:
        h = delicate_cell(params, x, h)
    return h


def scaled_by(constant: Any) -> Any:
    @jitbatch
    def scaled(params: Params, x: Array) -> Array:
        return x * constant

    return scaled


def signed_by(constant: np.ndarray) -> Any:
    @jitbatch
    def signed(params: Params, x: Array) -> Array:
        return jnp.copysign(x, constant)

    return signed


SCALES = [scaled_by(constant) for constant in (2, 2.0, True, np.int32(2), np.float32(2.0), 2.5)]
SIGNS = [signed_by(np.array(constant, np.float32)) for constant in (0.0, -0.0)]


@workload(
    weights(w=(INPUT,)),
    lambda rng, n: [jnp.asarray(rng.integers(1, 9, size=(1 + i % 2, INPUT)), jnp.int8) for i in range(n)],
    low_precision=True,
    size=3,
)
@jitbatch
def lookalike_cells(params: Params, rows: Array) -> dict[str, list[Array]]:
    """Cells that differ only in the type, the weak type or the sign bit of one constant."""
    row = rows[-1]
    brain = params["w"].astype(jnp.bfloat16) * row.astype(jnp.bfloat16)
    return {
        "int8": [cell(params, row) for cell in SCALES],
        "bfloat16": [cell(params, brain) for cell in SCALES],
        "signs": [cell(params, params["w"] * row) for cell in SIGNS],
    }


@jitbatch
def update_cell(params: Params, memory: Array, x: Array, where: Any) -> Array:
    return memory.at[where].set(jnp.tanh(x @ params["x"])).at[0].add(1.0)


@workload(
    rnn_params,
    lambda rng, n: [
        {"xs": xs, "where": jnp.asarray(rng.integers(3, size=len(xs)), jnp.int32), "start": jnp.int32(i % 2)}
        for i, xs in enumerate(long_sequences(rng, n))
    ],
    float_inputs=True,
)
@jitbatch
def array_updates(params: Params, sample: Params) -> dict[str, Array]:
    """Updates in place, computed indices and slices, sorting: in cells and bare."""
    memory = jnp.zeros((3, HIDDEN))
    for x, where in zip(sample["xs"], sample["where"], strict=True):
        memory = update_cell(params, memory, x, where)
    window = lax.dynamic_slice_in_dim(sample["xs"], sample["start"], 2)
    return {
        "memory": memory.at[-1].multiply(2.0),
        "row": sample["xs"][sample["start"] + 1],
        "window": window,
        "sorted": jnp.sort(memory.sum(0)),
        "argmax": jnp.argmax(memory[0]),
        "running": jnp.cumsum(lax.stop_gradient(memory[1])),
    }
