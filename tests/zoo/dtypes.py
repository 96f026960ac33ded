"""Keys, integers, booleans and short floats between cells, and look-ups in tables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jitbatch import jitbatch
from zoo.draw import sequences, token_sequences, token_trees, weights
from zoo.recurrent import rnn_params
from zoo.trees import leaf
from zoo.workloads import HIDDEN, INPUT, VOCAB, Params, Tree, workload


def keyed_sequences(rng: np.random.Generator, n: int) -> list[Params]:
    return [{"key": jax.random.key(int(rng.integers(1000))), "xs": xs} for xs in sequences(rng, n)]


@jitbatch
def dropout_cell(params: Params, key: Array, x: Array, h: Array) -> Array:
    h = jnp.tanh(x @ params["x"] + h @ params["h"])
    keep = jax.random.bernoulli(key, 0.7, h.shape)
    return jnp.where(keep, h / 0.7, 0.0)


@workload(rnn_params, keyed_sequences, float_inputs=True)
@jitbatch
def dropout_keys(params: Params, sample: Params) -> dict[str, Array]:
    """A typed key a sample, split and folded between the cells, drawn from inside and outside of them."""
    key, noise_key = jax.random.split(sample["key"])
    h = params["h0"] + 0.1 * jax.random.normal(noise_key, (HIDDEN,))
    for i, x in enumerate(sample["xs"]):
        h = dropout_cell(params, jax.random.fold_in(key, i), x, h)
    return {"h": h, "key": key}


@jitbatch
def counted_leaf(params: Params, word: Any) -> tuple[Array, Array, Array]:
    h = params["embed"][word]
    return h, jnp.int32(1), word % 2 == 0


@jitbatch
def counted_node(params: Params, left: Any, right: Any) -> tuple[Array, Array, Array]:
    h = jnp.where(left[2], left[0], right[0] @ params["w"]) * jnp.minimum(left[1], 3)
    return h, left[1] + right[1], left[2] ^ right[2]


@jitbatch
def count_hash(params: Params, count: Array, odd: Array) -> Array:
    mixed = count.astype(jnp.uint32) * jnp.uint32(2654435761)
    return jnp.where(odd, mixed >> 3, ~mixed)


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_trees)
@jitbatch
def ints_and_bools(params: Params, tree: Tree) -> dict[str, Array]:
    """Integers and booleans from cell to cell."""

    def visit(node: Tree) -> tuple[Array, Array, Array]:
        if isinstance(node, tuple):
            return counted_node(params, *map(visit, node))
        return counted_leaf(params, node)

    h, count, odd = visit(tree)
    return {
        "h": h,
        "count": count,
        "odd": odd,
        "hash": count_hash(params, count, odd),
        "any": odd | (count > 2),
    }


def mixed_params(key: Array) -> Params:
    drawn = weights(half=(INPUT, HIDDEN), brain=(HIDDEN, HIDDEN), single=(HIDDEN, HIDDEN))(key)
    return {
        "half": drawn["half"].astype(jnp.float16),
        "brain": drawn["brain"].astype(jnp.bfloat16),
        "single": drawn["single"],
        "table": jnp.arange(-6, 6, dtype=jnp.int8).reshape(INPUT, HIDDEN),
    }


@jitbatch
def half_cell(params: Params, x: Array) -> Array:
    return jnp.tanh(x.astype(jnp.float16) @ params["half"])


@jitbatch
def brain_cell(params: Params, h: Array) -> Array:
    return h.astype(jnp.bfloat16) @ params["brain"]


@jitbatch
def quantised_cell(params: Params, codes: Array) -> Array:
    return lax.dot(codes, params["table"], preferred_element_type=jnp.int32)


@jitbatch
def joined_cell(params: Params, brain: Array, codes: Array) -> Array:
    return jnp.tanh(brain.astype(jnp.float32) @ params["single"] + 0.01 * codes)


def mixed_sequences(rng: np.random.Generator, n: int) -> list[Params]:
    return [{"xs": xs, "codes": jnp.asarray(rng.integers(-9, 9, size=xs.shape), jnp.int8)} for xs in sequences(rng, n)]


@workload(mixed_params, mixed_sequences, float_inputs=True, low_precision=True)
@jitbatch
def mixed_dtypes(params: Params, sample: Params) -> dict[str, Array]:
    """float32, float16, bfloat16, int8 and int32 values in one sample."""
    halves = [half_cell(params, x) for x in sample["xs"]]
    brains = [brain_cell(params, half) for half in halves]
    codes = [quantised_cell(params, row) for row in sample["codes"]]
    total = jnp.zeros(HIDDEN)
    for brain, code in zip(brains, codes, strict=True):
        total = total + joined_cell(params, brain, code)
    return {
        "total": total,
        "half": halves[0],
        "brain": brains[-1],
        "codes": codes[-1],
        "int8": sample["codes"][-1] * 2,
    }


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_sequences)
@jitbatch
def embedding_lookup(params: Params, words: Array) -> dict[str, Array]:
    """Look-ups of whole rows of tokens, of one token in a cell, and by a computed index."""
    rows = params["embed"][words]
    taken = jnp.take(params["embed"], (words + 1) % VOCAB, axis=0)
    last = leaf({"embed": params["embed"]}, words[-1])
    return {"bag": jnp.tanh(rows.mean(0) @ params["w"]) + taken.sum(0), "last": last.h * words[0]}
