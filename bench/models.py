"""The models of the benchmarks, each written for one sample: Tree-LSTMs (Tai et al., 2015) with dicts of arrays."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jitbatch import jitbatch
from jitbatch.data import Dependency, Pair, Sentence, Tree

Params: TypeAlias = dict[str, jax.Array]

CLASSES = 5
SIMILARITY_HIDDEN = 50


class State(NamedTuple):
    h: jax.Array
    c: jax.Array


def _normal(shapes: dict[str, tuple[int, ...]]) -> Params:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {name: 0.1 * jax.random.normal(key, s) for key, (name, s) in zip(keys, shapes.items(), strict=True)}


# --- Binary trees with a class for each node


def binary_params(hidden: int, words: int = 1000, embedding: int = 300) -> Params:
    return _normal(
        {
            "embed": (words, embedding),
            "leaf": (embedding, 3 * hidden),
            "left": (hidden, 5 * hidden),
            "right": (hidden, 5 * hidden),
            "bias": (5 * hidden,),
            "out": (hidden, CLASSES),
        }
    )


@jitbatch
def leaf(params: Params, token: Any) -> State:
    i, o, u = jnp.split(params["embed"][token] @ params["leaf"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def compose(params: Params, left: State, right: State) -> State:
    i, fl, fr, o, u = jnp.split(left.h @ params["left"] + right.h @ params["right"] + params["bias"], 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(fl) * left.c + jax.nn.sigmoid(fr) * right.c
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def node_loss(params: Params, state: State, label: Any) -> jax.Array:
    return -jax.nn.log_softmax(state.h @ params["out"])[label]


def states(params: Params, tree: Tree) -> list[State]:
    """The states of all nodes in post-order."""
    if not isinstance(tree, tuple):
        return [leaf(params, tree)]
    left, right = (states(params, child) for child in tree)
    return [*left, *right, compose(params, left[-1], right[-1])]


@jitbatch
def logits(params: Params, tree: Tree) -> jax.Array:
    return states(params, tree)[-1].h @ params["out"]


@jitbatch
def root_loss(params: Params, sentence: Sentence) -> jax.Array:
    return node_loss(params, states(params, sentence.tree)[-1], sentence.labels[-1])


@jitbatch
def encode_binary(params: Params, tree: Tree) -> State:
    """The state of a tree's root, by a recursion through a decorated function."""
    if not isinstance(tree, tuple):
        return leaf(params, tree)
    left, right = (encode_binary(params, child) for child in tree)
    return compose(params, left, right)


@jitbatch
def encoded_root_loss(params: Params, sentence: Sentence) -> jax.Array:
    return node_loss(params, encode_binary(params, sentence.tree), sentence.labels[-1])


@jitbatch
def all_loss(params: Params, sentence: Sentence) -> jax.Array:
    return sum(
        (node_loss(params, *one) for one in zip(states(params, sentence.tree), sentence.labels, strict=True)),
        jnp.float32(0),
    )


# --- Pairs of dependency trees


def pair_params(hidden: int, words: int = 1000, embedding: int = 300) -> Params:
    return _normal(
        {
            "embed": (words, embedding),
            "w_iou": (embedding, 3 * hidden),
            "u_iou": (hidden, 3 * hidden),
            "b_iou": (3 * hidden,),
            "w_f": (embedding, hidden),
            "u_f": (hidden, hidden),
            "b_f": (hidden,),
            "product": (hidden, SIMILARITY_HIDDEN),
            "distance": (hidden, SIMILARITY_HIDDEN),
            "b_similarity": (SIMILARITY_HIDDEN,),
            "out": (SIMILARITY_HIDDEN, CLASSES),
            "b_out": (CLASSES,),
        }
    )


@jitbatch
def node(params: Params, token: Any, children: list[State]) -> State:
    x = params["embed"][token]
    h = sum((child.h for child in children), jnp.zeros_like(params["b_f"]))
    i, o, u = jnp.split(x @ params["w_iou"] + h @ params["u_iou"] + params["b_iou"], 3)
    forget = x @ params["w_f"] + params["b_f"]
    kept = sum(jax.nn.sigmoid(forget + child.h @ params["u_f"]) * child.c for child in children)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def divergence(params: Params, left: State, right: State, target: Any) -> jax.Array:
    """The Kullback-Leibler divergence of the predicted distribution over scores from the given one."""
    product, distance = left.h * right.h, jnp.abs(left.h - right.h)
    hidden = jax.nn.sigmoid(product @ params["product"] + distance @ params["distance"] + params["b_similarity"])
    predicted = jax.nn.log_softmax(hidden @ params["out"] + params["b_out"])
    return (jax.scipy.special.xlogy(target, target) - target * predicted).sum()


@jitbatch
def pair_loss(params: Params, pair: Pair) -> jax.Array:
    def encode(tree: Dependency) -> State:
        return node(params, tree.token, [encode(child) for child in tree.children])

    return divergence(params, encode(pair.left), encode(pair.right), pair.target)


@jitbatch
def encode(params: Params, tree: Dependency) -> State:
    """The state of a tree's root, by a recursion through a decorated function."""
    return node(params, tree.token, [encode(params, child) for child in tree.children])


@jitbatch
def encoded_pair_loss(params: Params, pair: Pair) -> jax.Array:
    return divergence(params, encode(params, pair.left), encode(params, pair.right), pair.target)
