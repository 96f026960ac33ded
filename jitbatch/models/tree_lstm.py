"""Tree-LSTMs (Tai et al., 2015): for trees whose nodes have a fixed number of children, and for any number."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Dependency, Tree
from jitbatch.models.tree_encoder import dependency_post_order, post_order


class State(NamedTuple):
    """The state of an LSTM: its output and its memory."""

    h: Array
    c: Array


class NaryTreeLSTM(nnx.Module):
    """A Tree-LSTM (Tai et al., 2015) for trees with words as leaves.

    An inner node has `arity` children, each with its own weights and forget gate.
    """

    def __init__(self, words: int, embedding: int, hidden: int, arity: int = 2, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.word_gates = nnx.Linear(embedding, 3 * hidden, rngs=rngs)
        self.child_gates = nnx.Linear(arity * hidden, (3 + arity) * hidden, rngs=rngs)

    @jitbatch
    def leaf(self, word: int) -> State:
        i, o, u = jnp.split(self.word_gates(self.embed(jnp.asarray(word))), 3)
        c = nnx.sigmoid(i) * jnp.tanh(u)
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    @jitbatch
    def compose(self, *children: State) -> State:
        return composed(self.child_gates(jnp.concatenate([child.h for child in children])), *children)

    def states(self, tree: Tree) -> list[State]:
        """The states of all nodes in post-order: the root's is the last."""
        return post_order(tree, self.leaf, self.compose)

    def outputs(self, tree: Tree) -> list[Array]:
        """The outputs of all nodes in post-order."""
        return [state.h for state in self.states(tree)]

    def __call__(self, tree: Tree) -> State:
        """The state of the root."""
        return self.states(tree)[-1]


def composed(gates: Array, *children: State) -> State:
    """The state of a node, from its gates and the states of its children."""
    i, o, u, *forget = jnp.split(gates, 3 + len(children))
    c = nnx.sigmoid(i) * jnp.tanh(u)
    for f, child in zip(forget, children, strict=True):
        c += nnx.sigmoid(f) * child.c
    return State(nnx.sigmoid(o) * jnp.tanh(c), c)


class ChildSumTreeLSTM(nnx.Module):
    """A child-sum Tree-LSTM (Tai et al., 2015) for trees with a word at each node and any number of children."""

    def __init__(self, words: int, embedding: int, hidden: int, *, rngs: nnx.Rngs):
        self.hidden = hidden
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.word_gates = nnx.Linear(embedding, 3 * hidden, rngs=rngs)
        self.sum_gates = nnx.Linear(hidden, 3 * hidden, use_bias=False, rngs=rngs)
        self.word_forget = nnx.Linear(embedding, hidden, rngs=rngs)
        self.child_forget = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)

    @jitbatch
    def node(self, word: int, children: Sequence[State]) -> State:
        x = self.embed(jnp.asarray(word))
        h = sum((child.h for child in children), jnp.zeros(self.hidden))
        i, o, u = jnp.split(self.word_gates(x) + self.sum_gates(h), 3)
        forget = self.word_forget(x)
        kept = sum(nnx.sigmoid(forget + self.child_forget(child.h)) * child.c for child in children)
        c = nnx.sigmoid(i) * jnp.tanh(u) + kept
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    def states(self, tree: Dependency) -> list[State]:
        """The states of all nodes in post-order: the root's is the last."""
        return dependency_post_order(tree, self.node)

    def outputs(self, tree: Dependency) -> list[Array]:
        """The outputs of all nodes in post-order."""
        return [state.h for state in self.states(tree)]

    def __call__(self, tree: Dependency) -> State:
        """The state of the root."""
        return self.states(tree)[-1]
