"""Where parameters come from (closures, shared values, modules), and what else can be a subgraph."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from jitbatch import jitbatch
from zoo.draw import normal, sequences, token_trees, vector_trees
from zoo.recurrent import rnn_cell, rnn_params
from zoo.workloads import CLASSES, HIDDEN, INPUT, VOCAB, Params, Tree, workload

FIXED = np.random.default_rng(5).normal(size=(INPUT, HIDDEN)).astype(np.float32)


def closed_over(weight: Array) -> Any:
    @jitbatch
    def closure_cell(params: Params, x: Array) -> Array:
        return jnp.tanh(x @ weight) * params["b"]

    return closure_cell


CLOSURES = [
    closed_over(jnp.asarray(FIXED)),
    closed_over(jnp.asarray(-FIXED)),
    closed_over(jnp.asarray(FIXED)),
]


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def parameters_in_closures(params: Params, xs: Array) -> Array:
    """Concrete arrays that cells and the function close over are constants."""
    total = jnp.asarray(FIXED).sum(0)
    for i, x in enumerate(xs):
        total = total + CLOSURES[i % 3](params, x) + x @ FIXED
    return total


@jax.jit
def jitted_leaf(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["x"])


@functools.partial(jax.jit, static_argnames="scale")
def jitted_node(params: Params, left: Array, right: Array, *, scale: float) -> Array:
    return jnp.tanh(left @ params["h"] + scale * right)


@workload(rnn_params, vector_trees, float_inputs=True)
@jitbatch
def jitted_cells(params: Params, tree: Tree) -> Array:
    """The user's own jit functions are subgraphs."""

    def visit(node: Tree, depth: int) -> Array:
        if not isinstance(node, tuple):
            return jitted_leaf(params, node)
        left, right = (visit(child, depth + 1) for child in node)
        return jitted_node(params, left, right, scale=0.5 if depth % 2 else 2.0)

    return visit(tree, 0)


@jitbatch
def energy(params: Params, h: Array) -> Array:
    return jnp.sum(jnp.sin(h) * (h @ params["h"]))


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def inner_transformations(params: Params, xs: Array) -> dict[str, Array]:
    """Decorated calls inside vmap, grad, scan, jit and checkpoint within a sample are the plain function."""
    mapped = jax.vmap(rnn_cell, in_axes=(None, 0, None))(params, xs, params["h0"])
    last, _ = lax.scan(lambda h, x: (rnn_cell(params, x, h), None), params["h0"], xs)
    return {
        "vmap": mapped.sum(0),
        "grad": jax.grad(energy, argnums=1)(params, last),
        "jit": jax.jit(lambda h: energy(params, h) + rnn_cell(params, xs[0], h).sum())(last),
        "checkpoint": jax.checkpoint(rnn_cell)(params, xs[-1], last),
    }


@jitbatch
def prior_cell(params: Params) -> Array:
    return jnp.tanh(params["b"] * params["h0"])


@jitbatch
def mixing_cell(mixed: Array, gain: Array, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ mixed + gain * h)


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def shared_values(params: Params, xs: Array) -> dict[str, Array]:
    """Operations and a subgraph on shared arguments alone, read by cells and returned."""
    mixed = params["x"] @ params["h"]
    gain = jax.nn.softplus(params["b"]) + jnp.ones(HIDDEN)
    h = prior = prior_cell(params)
    for x in xs:
        h = mixing_cell(mixed, gain, x, h)
    return {"h": h, "mixed": mixed, "prior": prior, "constant": jnp.arange(3)}


@workload(rnn_params, sequences, size=3)
@jitbatch
def shared_only(params: Params, xs: Array) -> Array:
    """A result that no sample has a part in."""
    return jnp.tanh(params["h0"] @ params["h"])


@workload(rnn_params, lambda rng, n: [(xs, normal(rng, INPUT)) for xs in sequences(rng, n)], float_inputs=True)
@jitbatch
def no_subgraph(params: Params, sample: tuple[Array, Array]) -> dict[str, Array]:
    """No subgraph call at all, an unused input, and one that is returned as it came."""
    xs, x = sample
    return {"h": jnp.tanh(xs @ params["x"]).sum(0) + params["b"], "same": x}


class TreeNet(nnx.Module):
    """A Flax nnx module with decorated methods: `self` is the shared argument."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.join = nnx.Linear(2 * HIDDEN, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    @jitbatch
    def leaf(self, word: Any) -> Array:
        return self.embed(jnp.asarray(word))

    @jitbatch
    def compose(self, left: Array, right: Array) -> Array:
        return jax.nn.silu(self.join(jnp.concatenate([left, right])))

    def encode(self, tree: Tree) -> Array:
        if isinstance(tree, tuple):
            return self.compose(*map(self.encode, tree))
        return self.leaf(tree)

    @jitbatch
    def nnx_methods(self, tree: Tree) -> Array:
        return self.out(self.encode(tree))


workload(lambda key: TreeNet(nnx.Rngs(key)), token_trees)(TreeNet.nnx_methods)


class LinenCell(nn.Module):
    """A Linen cell, used through `apply`."""

    @nn.compact
    def __call__(self, left: Array, right: Array) -> Array:
        h = nn.Dense(HIDDEN)(jnp.concatenate([left, right]))
        return nn.Dense(INPUT)(nn.LayerNorm()(nn.gelu(h)))


LINEN_CELL = LinenCell()


@jitbatch
def linen_join(variables: Any, left: Array, right: Array) -> Array:
    return LINEN_CELL.apply(variables, left, right)  # pyright: ignore[reportReturnType]


@workload(lambda key: LINEN_CELL.init(key, jnp.zeros(INPUT), jnp.zeros(INPUT)), vector_trees, float_inputs=True)
@jitbatch
def linen_apply(variables: Any, tree: Tree) -> Array:
    if not isinstance(tree, tuple):
        return tree
    return linen_join(variables, *(linen_apply(variables, child) for child in tree))


class EquinoxNet(eqx.Module):
    """An Equinox module: its activation function is a leaf."""

    mlp: eqx.nn.MLP
    initial: Array

    def __init__(self, key: Array) -> None:
        self.mlp = eqx.nn.MLP(INPUT + HIDDEN, HIDDEN, width_size=5, depth=1, key=key)
        self.initial = jnp.ones(HIDDEN)


@jitbatch
def equinox_step(net: EquinoxNet, x: Array, h: Array) -> Array:
    return net.mlp(jnp.concatenate([x, h]))


@workload(EquinoxNet, sequences, float_inputs=True)
@jitbatch
def equinox_module(net: EquinoxNet, xs: Array) -> Array:
    h = net.initial
    for x in xs:
        h = equinox_step(net, x, h)
    return h
