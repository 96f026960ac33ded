"""Cells with several outputs, with control flow, and with derivatives of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jitbatch import jitbatch
from zoo.draw import random_tree, sequences
from zoo.recurrent import rnn_params
from zoo.workloads import Params, Tree, workload


@jitbatch
def three_outputs(params: Params, x: Array) -> dict[str, Any]:
    h = x @ params["x"]
    return {"vector": jnp.tanh(h), "parts": (h.sum(), jnp.outer(x, h)), "none": None}


@jitbatch
def read_parts(params: Params, total: Array, matrix: Array) -> tuple[Array, Array]:
    return total * params["b"], matrix.sum(0)


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def multi_output_cells(params: Params, xs: Array) -> dict[str, Any]:
    """Cells with nested outputs of several shapes, some of which nobody reads."""
    results = [three_outputs(params, x) for x in xs]
    first, second = read_parts(params, *results[-1]["parts"])
    third, _ = read_parts(params, results[0]["parts"][0], results[-1]["parts"][1])
    return {"h": results[0]["vector"] + first * third, "second": second, "none": results[0]["none"]}


@jitbatch
def scan_cell(params: Params, x: Array, h: Array) -> Array:
    def step(h: Array, scale: Array) -> tuple[Array, Array]:
        h = jnp.tanh(scale * (x @ params["x"]) + h @ params["h"])
        return h, h

    last, all_of_them = lax.scan(step, h, jnp.arange(1.0, 4.0))
    return last + all_of_them.mean(0)


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def scan_in_cell(params: Params, xs: Array) -> Array:
    h = params["h0"]
    for x in xs:
        h = scan_cell(params, x, h)
    return h


@jitbatch
def cond_cell(params: Params, x: Array, h: Array) -> Array:
    return lax.cond(x[0] > 0, lambda: jnp.tanh(x @ params["x"] + h), lambda: jnp.sin(h @ params["h"]))


@jitbatch
def switch_cell(params: Params, which: Any, h: Array) -> Array:
    return lax.switch(which, [lambda h: h, lambda h: h @ params["h"], lambda h: h * params["b"]], h)


@workload(
    rnn_params,
    lambda rng, n: [(xs, jnp.int32(i % 3)) for i, xs in enumerate(sequences(rng, n))],
    float_inputs=True,
    size=3,
)
@jitbatch
def cond_in_cell(params: Params, sample: tuple[Array, Array]) -> Array:
    xs, which = sample
    h = params["h0"]
    for x in xs:
        h = cond_cell(params, x, h)
    return switch_cell(params, which, h)


@jitbatch
def collatz(params: Params, start: Array) -> tuple[Array, Array]:
    """How many steps to 1: a while_loop whose trip count differs from row to row."""

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        n, count = carry
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    _, count = lax.while_loop(lambda carry: carry[0] > 1, step, (start, jnp.int32(0)))
    return count, count * params["b"]


@jitbatch
def collatz_join(params: Params, left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    count, scaled = collatz(params, left[0] + right[0] + 1)
    return count, jnp.sin(scaled) + left[1] @ params["h"] + right[1]


@workload(
    rnn_params,
    lambda rng, n: [random_tree(rng, 1 + i % 3, lambda: jnp.int32(rng.integers(1, 20))) for i in range(n)],
    size=3,
)
@jitbatch
def while_in_cell(params: Params, tree: Tree) -> tuple[Array, Array]:
    """A while_loop inside a cell, and integers from cell to cell."""
    if isinstance(tree, tuple):
        left, right = (while_in_cell(params, child) for child in tree)
        return collatz_join(params, left, right)
    return collatz(params, tree)


@jax.custom_vjp
def reversed_gradient(x: Array, strength: Array) -> Array:
    return jnp.sin(x)


reversed_gradient.defvjp(
    lambda x, strength: (jnp.sin(x), (x, strength)),
    lambda residuals, g: (-residuals[1] * g * jnp.cos(residuals[0]), jnp.zeros_like(residuals[1])),
)


def doubled(limit: float, x: Array) -> Array:
    return 2.0 * x


clipped_gradient: Any = jax.custom_vjp(doubled, nondiff_argnums=(0,))
clipped_gradient.defvjp(lambda limit, x: (2.0 * x, None), lambda limit, _, g: (jnp.clip(g, -limit, limit),))


@jitbatch
def custom_vjp_cell(params: Params, x: Array, h: Array) -> Array:
    return reversed_gradient(x @ params["x"] + h, params["b"])


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def custom_vjp_inside(params: Params, xs: Array) -> Array:
    """Functions with their own backward rule, inside a cell and bare."""
    h = params["h0"]
    for x in xs:
        h = clipped_gradient(0.3, custom_vjp_cell(params, x, h))
    return h


@jax.custom_jvp
def newton_sqrt(y: Array) -> Array:
    """A while_loop that reverse mode could not take apart: its derivative is given."""

    def step(root: Array) -> Array:
        return 0.5 * (root + y / root)

    return lax.while_loop(lambda root: jnp.any(jnp.abs(root * root - y) > 1e-4), step, y + 1.0)


@newton_sqrt.defjvp
def _newton_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    root = newton_sqrt(*primals)
    return root, tangents[0] / (2.0 * root)


@jitbatch
def custom_jvp_cell(params: Params, x: Array, h: Array) -> Array:
    return newton_sqrt(1.0 + jnp.square(x @ params["x"] + h))


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def custom_jvp_inside(params: Params, xs: Array) -> Array:
    """A function with its own forward rule around a while_loop, inside a cell and bare."""
    h = params["h0"]
    for x in xs:
        h = custom_jvp_cell(params, x, h)
    return h + newton_sqrt(1.0 + h)
