"""Trees of any arity: sums, means and extremes over the children of a node."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jitbatch import jitbatch
from zoo.draw import normal, weights
from zoo.trees import State
from zoo.workloads import HIDDEN, INPUT, Params, Tree, workload

child_sum_params = weights(
    w_iou=(INPUT, 3 * HIDDEN),
    u_iou=(HIDDEN, 3 * HIDDEN),
    w_f=(INPUT, HIDDEN),
    u_f=(HIDDEN, HIDDEN),
)


def bushy_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Pairs of an input vector and a list of children; three samples have all arities from 0 to 8."""
    arities = [(8, 0, 1), (7, 2, 3), (6, 4, 5), (0,), (1, 1), (3, 0, 2)]

    def node(children: Sequence[Tree] = ()) -> Tree:
        return normal(rng, INPUT), list(children)

    def sample(arity: int, *inner: int) -> Tree:
        children = [node([node() for _ in range(k)]) for k in inner[:arity]]
        return node(children + [node() for _ in range(arity - len(children))])

    return [sample(*arities[i % len(arities)]) for i in range(n)]


def child_sum_update(params: Params, x: Array, h_sum: Array, carried: Array) -> State:
    i, o, u = jnp.split(x @ params["w_iou"] + h_sum @ params["u_iou"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + carried
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def child_sum_cell(params: Params, x: Array, children: list[State]) -> State:
    if not children:
        return child_sum_update(params, x, jnp.zeros(HIDDEN), jnp.zeros(HIDDEN))
    h = jnp.stack([child.h for child in children])
    c = jnp.stack([child.c for child in children])
    forget = jax.nn.sigmoid(x @ params["w_f"] + h @ params["u_f"])
    return child_sum_update(params, x, h.sum(0), (forget * c).sum(0))


@workload(child_sum_params, bushy_trees, float_inputs=True)
@jitbatch
def child_sum_lists(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM whose cell takes the list of its children."""

    def visit(node: Tree) -> State:
        x, children = node
        return child_sum_cell(params, x, [visit(child) for child in children])

    return visit(tree).h


@jitbatch
def forget_edge(params: Params, x: Array, child: State) -> Array:
    return jax.nn.sigmoid(x @ params["w_f"] + child.h @ params["u_f"]) * child.c


child_sum_node = jitbatch(child_sum_update)


@workload(child_sum_params, bushy_trees, float_inputs=True)
@jitbatch
def child_sum_edges(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM with a cell an edge and bare sums of any number of terms."""

    def visit(node: Tree) -> State:
        x, children = node
        states = [visit(child) for child in children]
        zero = jnp.zeros(HIDDEN)
        h_sum = functools.reduce(operator.add, [state.h for state in states], zero)
        carried = functools.reduce(operator.add, [forget_edge(params, x, state) for state in states], zero)
        return child_sum_node(params, x, h_sum, carried)

    return visit(tree).h


def arity_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Pairs of an input vector and a list of children, with arities 0 to 3."""
    shapes: list[Any] = [[[], [[]]], [[], [], [[], []]], [], [[]]]

    def node(shape: Any) -> Tree:
        return normal(rng, HIDDEN), [node(child) for child in shape]

    return [node(shapes[i % len(shapes)]) for i in range(n)]


pool_params = weights(w=(HIDDEN, HIDDEN), u=(HIDDEN, HIDDEN), b=(HIDDEN,))


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def child_sum_bare(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM in bare jnp, with a forget gate for each child and a learned start."""

    def visit(node: Tree) -> State:
        x, children = node
        states = [visit(child) for child in children]
        gates = x @ params["w"]
        carried = sum(jax.nn.sigmoid(gates + state.h @ params["u"]) * state.c for state in states)
        c = jnp.sin(gates + sum([state.h for state in states], params["b"]) @ params["u"]) + carried
        return State(jnp.tanh(c), c)

    return visit(tree).h


@jitbatch
def gated_list(params: Params, x: Array, children: list[State]) -> State:
    carried = sum([jax.nn.sigmoid(x + child.h @ params["u"]) * child.c for child in children], jnp.zeros(HIDDEN))
    c = jnp.sin(x @ params["w"]) + carried
    return State(jnp.tanh(c), c)


@jitbatch
def gated_arguments(params: Params, x: Array, *children: State) -> State:
    c = jnp.sin(x @ params["w"])
    for child in children:
        c = c + jax.nn.sigmoid(x + child.h @ params["u"]) * child.c
    return State(jnp.tanh(c), c)


@jitbatch
def gated_lists(params: Params, x: Array, children: dict[str, list[Array]]) -> State:
    """Calls another decorated function that reduces the list."""
    states = [State(h, c) for h, c in zip(children["h"], children["c"], strict=True)]
    h, c = gated_list(params, x, states)
    return State(h + sum(children["h"], params["b"]), c)


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def children_in_arguments(params: Params, tree: Tree) -> Array:
    """Decorated cells that take their children as a list, as further arguments and as a dict of lists."""

    def visit(node: Tree, depth: int) -> State:
        x, children = node
        states = [visit(child, depth + 1) for child in children]
        if depth % 3 == 0:
            return gated_list(params, x, states)
        if depth % 3 == 1:
            return gated_arguments(params, x, *states)
        return gated_lists(params, x, {"h": [state.h for state in states], "c": [state.c for state in states]})

    return visit(tree, 0).h


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def pooled_children(params: Params, tree: Tree) -> Array:
    """Mean, max and min of any number of children, some of them equal."""
    x, children = tree
    states = [params["b"], *(pooled_children(params, child) for child in children)]
    mean = jnp.stack(states).mean(0)
    largest, smallest = jnp.stack([*states, *states[-1:]]).max(0), jnp.min(jnp.stack(states, axis=1), axis=1)
    return jnp.tanh(x + mean @ params["w"] + largest * smallest)


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def losses_through_recursion(params: Params, tree: Tree) -> tuple[Array, Array]:
    """A loss and a count of every node, summed up on the way back."""

    def visit(node: Tree) -> tuple[Array, Any, Any]:
        x, children = node
        below = [visit(child) for child in children]
        h = jnp.tanh(x @ params["w"] + sum(state for state, *_ in below))
        loss, count = (h * params["b"]).sum(), jnp.int32(1)
        for _, child_loss, child_count in below:
            loss = loss + child_loss
            count = count + child_count
        return h, loss, count

    return visit(tree)[1:]
