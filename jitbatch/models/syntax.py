"""The first word of a function's name, guessed from its syntax tree (Allamanis et al., 2015; Alon et al., 2019)."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.ast_functions import Function, Syntax
from jitbatch.models.losses import cross_entropy
from jitbatch.models.tree_lstm import State


class FunctionNamer(nnx.Module):
    """A child-sum Tree-LSTM (Tai et al., 2015) over syntax trees, and the maximum over the states of all nodes.

    A node's input is the sum of the embeddings of its type, of its field in its parent, and of the words of its
    identifiers.
    """

    def __init__(
        self, kinds: int, fields: int, tokens: int, names: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs
    ):
        self.hidden = hidden
        self.embed_kind = nnx.Embed(kinds, embedding, rngs=rngs)
        self.embed_field = nnx.Embed(fields, embedding, rngs=rngs)
        self.embed_token = nnx.Embed(tokens, embedding, rngs=rngs)
        self.input_gates = nnx.Linear(embedding, 4 * hidden, rngs=rngs)
        self.sum_gates = nnx.Linear(hidden, 3 * hidden, use_bias=False, rngs=rngs)
        self.child_forget = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(2 * hidden, names, rngs=rngs)

    @jitbatch
    def node(self, kind: int, field: int, tokens: Sequence[int], children: Sequence[State]) -> State:
        x = self.embed_kind(jnp.asarray(kind)) + self.embed_field(jnp.asarray(field))
        x += sum(self.embed_token(jnp.asarray(token)) for token in tokens)
        h = sum((child.h for child in children), jnp.zeros(self.hidden))
        forget, *gates = jnp.split(self.input_gates(x), 4)
        i, o, u = jnp.split(jnp.concatenate(gates) + self.sum_gates(h), 3)
        kept = sum(nnx.sigmoid(forget + self.child_forget(child.h)) * child.c for child in children)
        c = nnx.sigmoid(i) * jnp.tanh(u) + kept
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    def states(self, tree: Syntax[int]) -> list[State]:
        """The states of all nodes in post-order: the root's is the last."""
        states: list[State] = []
        children: list[State] = []
        for child in tree.children:
            states += self.states(child)
            children.append(states[-1])
        return [*states, self.node(tree.kind, tree.field, tree.tokens, children)]

    @jitbatch
    def logits(self, tree: Syntax[int]) -> Array:
        """A score for each first word of a name."""
        states = self.states(tree)
        pooled = jnp.stack([state.h for state in states]).max(axis=0)
        return self.out(jnp.concatenate([states[-1].h, pooled]))

    @jitbatch
    def loss(self, sample: Function) -> Array:
        return cross_entropy(self.logits(sample.tree), sample.name)

    @jitbatch
    def predict(self, sample: Function) -> Array:
        """The most likely first word."""
        return self.logits(sample.tree).argmax()
