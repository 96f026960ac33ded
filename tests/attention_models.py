"""Workloads that attend to a varying number of things, by `jitbatch.segment`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from zoo import HIDDEN, INPUT, Params, Tree, bushy_trees, normal, sequences, workload

from jitbatch import Static, jitbatch, segment

HEADS = 2


def attention_params(key: Array) -> Params:
    shapes = {
        "input": (INPUT, HIDDEN), "query": (HIDDEN, HIDDEN), "key": (HIDDEN, HIDDEN), "value": (HIDDEN, HIDDEN),
        "seed": (HIDDEN,), "out": (HIDDEN, HIDDEN), "score": (HEADS, 2 * HIDDEN), "heads": (HEADS, HIDDEN, HIDDEN),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    return {name: 0.5 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


@workload(attention_params, sequences, float_inputs=True)
@jitbatch
def set_attention(params: Params, xs: Array) -> Array:
    """A set transformer (Lee et al. 2019) in small: every element attends to all, then a learned seed does."""
    hs = [jnp.tanh(x @ params["input"]) for x in xs]
    keys, values = [h @ params["key"] for h in hs], [h @ params["value"] for h in hs]
    mixed = [h + segment.attend(h @ params["query"], keys, values) for h in hs]
    return segment.attend(params["seed"], mixed, mixed) @ params["out"] + segment.mean(mixed)


@jitbatch
def attending_node(params: Params, x: Array, children: list[Array]) -> Array:
    h = jnp.tanh(x @ params["input"])
    if not children:
        return h
    query = h @ params["query"]
    attended = segment.attend(query, [child @ params["key"] for child in children], children)
    return jnp.tanh(h + attended @ params["value"] + segment.max(children))


@workload(attention_params, bushy_trees, float_inputs=True)
@jitbatch
def child_attention_tree(params: Params, tree: Tree) -> Array:
    """A tree whose nodes attend to their children, in a cell that takes the list of them: in a loop."""

    def visit(node: Tree) -> Array:
        x, children = node
        return attending_node(params, x, [visit(child) for child in children])

    return visit(tree)


def orders(rng: np.random.Generator, n: int) -> list[Any]:
    """Input rows, 1 to 5 of them, and in which order to point at them."""
    lengths = [1 + (2 * i) % 5 for i in range(n)]
    return [(normal(rng, length, INPUT), [Static(int(i)) for i in rng.permutation(length)]) for length in lengths]


@workload(attention_params, orders)
@jitbatch
def pointer_network(params: Params, sample: Any) -> Array:
    """A pointer network (Vinyals et al. 2015): the log likelihood of pointing at the elements in some order."""
    xs, order = sample
    hs = [jnp.tanh(x @ params["input"]) for x in xs]
    keys = [h @ params["key"] for h in hs]
    state, likelihood = params["seed"], jnp.zeros(())
    for target in order:
        query = state @ params["query"]
        scores = [params["out"][0] @ jnp.tanh(query + key) for key in keys]
        likelihood += scores[target.value] - segment.logsumexp(scores)
        state = jnp.tanh(hs[target.value] @ params["value"] + segment.attend_scores(scores, hs))
    return likelihood


def small_graphs(rng: np.random.Generator, n: int) -> list[Any]:
    """Features of 1 to 4 nodes, and for each node its neighbours, itself among them."""
    graphs = []
    for i in range(n):
        size = 1 + i % 4
        edges = rng.random((size, size)) < 0.5
        neighbours = [[Static(j) for j in range(size) if j == k or edges[k, j]] for k in range(size)]
        graphs.append((normal(rng, size, INPUT), neighbours))
    return graphs


@jitbatch
def edge_scores(params: Params, one: Array, other: Array) -> Array:
    return jax.nn.leaky_relu(params["score"] @ jnp.concatenate([one, other]))


@workload(attention_params, small_graphs)
@jitbatch
def small_gat(params: Params, graph: Any) -> Array:
    """A graph attention network (Velickovic et al. 2018) of two layers and two heads."""
    xs, neighbours = graph
    hs = [jnp.tanh(x @ params["input"]) for x in xs]
    for _ in range(2):
        values = [jnp.einsum("h,khd->kd", h, params["heads"]) for h in hs]
        attended = []
        for h, near in zip(hs, neighbours, strict=True):
            scores = [edge_scores(params, h, hs[j.value]) for j in near]
            attended.append(segment.attend_scores(scores, [values[j.value] for j in near]))
        hs = [jnp.tanh(one.mean(axis=0)) for one in attended]
    return segment.sum(hs)
