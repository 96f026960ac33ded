"""Binary trees."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jitbatch import jitbatch
from zoo.draw import normal, random_tree, token, token_trees, weights
from zoo.workloads import CLASSES, HIDDEN, INPUT, VOCAB, Params, Tree, workload


class State(NamedTuple):
    """The two outputs of an LSTM cell."""

    h: Array
    c: Array


tree_params = weights(
    embed=(VOCAB, HIDDEN), compose=(2 * HIDDEN, 5 * HIDDEN), bias=(5 * HIDDEN,), out=(HIDDEN, CLASSES)
)


@jitbatch
def leaf(params: Params, word: Any) -> State:
    c = params["embed"][word]
    return State(jnp.tanh(c), c)


@jitbatch
def compose(params: Params, left: State, right: State) -> State:
    gates = jnp.concatenate([left.h, right.h]) @ params["compose"] + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    c = c + jax.nn.sigmoid(f_left) * left.c + jax.nn.sigmoid(f_right) * right.c
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


def encode(params: Params, tree: Tree) -> State:
    if isinstance(tree, tuple):
        return compose(params, *(encode(params, child) for child in tree))
    return leaf(params, tree)


@workload(tree_params, token_trees, size=5)
@jitbatch
def binary_tree(params: Params, tree: Tree) -> Array:
    """Recursion over the sample with a decorated leaf and a decorated composition."""
    return encode(params, tree).h @ params["out"]


@workload(tree_params, lambda rng, n: [token(rng) for _ in range(n)], size=3)
@jitbatch
def single_leaf(params: Params, tree: Tree) -> Array:
    """Every sample is a leaf."""
    return encode(params, tree).h @ params["out"]


def repeated_tree(rng: np.random.Generator, n: int) -> list[Tree]:
    tree = random_tree(rng, 4, lambda: token(rng))
    return [tree] * n


@workload(tree_params, repeated_tree)
@jitbatch
def one_sample_repeated(params: Params, tree: Tree) -> State:
    """All samples are one and the same."""
    return encode(params, tree)


def bare_gate(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def bare_leaf(params: Params, word: Any) -> State:
    c = params["embed"][word]
    return State(jnp.tanh(c), c)


def bare_compose(params: Params, left: State, right: State) -> State:
    gates = jnp.concatenate([left.h, right.h]) @ params["compose"] + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = bare_gate(i) * jnp.tanh(u) + bare_gate(f_left) * left.c + bare_gate(f_right) * right.c
    return State(bare_gate(o) * jnp.tanh(c), c)


def bare_encode(params: Params, tree: Tree) -> State:
    if isinstance(tree, tuple):
        left, right = tree
        return bare_compose(params, bare_encode(params, left), bare_encode(params, right))
    return bare_leaf(params, tree)


@workload(tree_params, token_trees, size=5)
@jitbatch
def bare_tree_lstm(params: Params, tree: Tree) -> Array:
    """The same Tree-LSTM in bare jnp with helper functions: no decorated call anywhere."""
    return bare_encode(params, tree).h @ params["out"]


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_trees)
@jitbatch
def recursion_through_itself(params: Params, tree: Tree) -> Array:
    """A decorated function that calls itself, with bare operations around the calls."""
    if not isinstance(tree, tuple):
        return params["embed"][tree]
    left, right = (recursion_through_itself(params, child) for child in tree)
    return jnp.tanh((left - 0.5 * right) @ params["w"])


@jitbatch
def unit(params: Params, h: Array) -> Array:
    return jnp.tanh(h @ params["w"] + params["b"])


@jitbatch
def layer(params: Params, h: Array) -> Array:
    return h + 0.5 * unit(params, unit(params, h))


@jitbatch
def stack_of_layers(params: Params, hs: list[Array]) -> Array:
    return layer(params, functools.reduce(operator.add, [layer(params, h) for h in hs]))


@workload(
    weights(w=(INPUT, INPUT), b=(INPUT,)),
    lambda rng, n: [[normal(rng, INPUT) for _ in range(1 + i % 3)] for i in range(n)],
    float_inputs=True,
)
@jitbatch
def nested_decorated(params: Params, hs: list[Array]) -> Array:
    """Decorated functions that call decorated functions, three deep."""
    return stack_of_layers(params, hs) - unit(params, hs[0])


def missing_child_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    def node(depth: int) -> Tree:
        if depth == 0 or rng.random() < 0.3:
            return None
        return {"x": normal(rng, INPUT), "left": node(depth - 1), "right": node(depth - 1)}

    return [{"x": normal(rng, INPUT), "left": node(i % 3), "right": node(2)} for i in range(n)]


@jitbatch
def binary_cell(params: Params, x: Array, left: Array, right: Array) -> Array:
    return jnp.tanh(x @ params["x"] + left @ params["left"] + right @ params["right"])


@workload(
    weights(x=(INPUT, HIDDEN), left=(HIDDEN, HIDDEN), right=(HIDDEN, HIDDEN), nil=(HIDDEN,)),
    missing_child_trees,
    float_inputs=True,
)
@jitbatch
def missing_children(params: Params, tree: Tree) -> Array:
    """A learned state from the parameters where other calls pass a computed one."""
    if tree is None:
        return params["nil"]
    left, right = missing_children(params, tree["left"]), missing_children(params, tree["right"])
    return binary_cell(params, tree["x"], left, right)


def labelled_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    def label(tree: Tree) -> Tree:
        gold = jnp.int32(rng.integers(CLASSES))
        return (gold, *map(label, tree)) if isinstance(tree, tuple) else (gold, jnp.int32(tree))

    return [label(tree) for tree in token_trees(rng, n)]


@jitbatch
def cross_entropy(params: Params, state: State, gold: Array) -> Array:
    return -jax.nn.log_softmax(state.h @ params["out"])[gold]


@workload(tree_params, labelled_trees)
@jitbatch
def per_node_losses(params: Params, tree: Tree) -> Array:
    """A loss at every node of a tree, summed."""
    losses: list[Array] = []

    def visit(node: Tree) -> State:
        gold, *children = node
        is_leaf = len(children) == 1
        state = leaf(params, *children) if is_leaf else compose(params, *map(visit, children))
        losses.append(cross_entropy(params, state, gold))
        return state

    visit(tree)
    return functools.reduce(operator.add, losses)


@jitbatch
def add_node(params: Params, left: Array, right: Array) -> Array:
    return jnp.tanh(left @ params["add"] + right)


@jitbatch
def max_node(params: Params, left: Array, right: Array) -> Array:
    return jnp.maximum(left @ params["max"], right)


@workload(
    weights(add=(INPUT, INPUT), max=(INPUT, INPUT)),
    lambda rng, n: [random_tree(rng, 3 + i % 3, lambda: normal(rng, INPUT)) for i in range(n)],
    float_inputs=True,
)
@jitbatch
def alternating_kinds(params: Params, tree: Tree) -> Array:
    """Two kinds of subgraph, alternating by depth."""

    def visit(node: Tree, depth: int) -> Array:
        if not isinstance(node, tuple):
            return node
        left, right = (visit(child, depth + 1) for child in node)
        return (max_node if depth % 2 else add_node)(params, left, right)

    return visit(tree, 0)
