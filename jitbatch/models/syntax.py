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
    """A child-sum Tree-LSTM (Tai et al., 2015) over syntax trees: a name depends on the maximum of the states of all
    nodes, and on the sum of their inputs.

    A node's input is the sum of the embeddings of its type, of its field in its parent, and of the words of its
    identifiers.

    >>> from jitbatch.data import Vocabulary
    >>> from jitbatch.data.ast_functions import FunctionVocabularies, functions_of, number_functions
    >>> functions = functions_of("def get(self): return self.x\\ndef set(self, x): self.x = x")
    >>> vocabularies = FunctionVocabularies(Vocabulary(), Vocabulary(), Vocabulary(), Vocabulary(["get", "set"]))
    >>> samples = number_functions(functions, vocabularies)
    >>> kinds, fields, tokens, names = map(len, vocabularies)
    >>> model = FunctionNamer(kinds, fields, tokens, names, embedding=4, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch(samples).shape
    (2,)
    """

    def __init__(
        self,
        kinds: int,
        fields: int,
        tokens: int,
        names: int,
        embedding: int = 128,
        hidden: int = 64,
        *,
        rngs: nnx.Rngs,
    ):
        self.hidden = hidden
        self.embed_kind = nnx.Embed(kinds, embedding, rngs=rngs)
        self.embed_field = nnx.Embed(fields, embedding, rngs=rngs)
        self.embed_token = nnx.Embed(tokens, embedding, rngs=rngs)
        self.input_gates = nnx.Linear(embedding, 4 * hidden, rngs=rngs)
        self.sum_gates = nnx.Linear(hidden, 3 * hidden, use_bias=False, rngs=rngs)
        self.child_forget = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(hidden + embedding, names, rngs=rngs)

    @jitbatch
    def inputs(self, kind: int, field: int, tokens: Sequence[int]) -> Array:
        x = self.embed_kind(jnp.asarray(kind)) + self.embed_field(jnp.asarray(field))
        return sum((self.embed_token(jnp.asarray(token)) for token in tokens), x)

    @jitbatch
    def node(self, x: Array, children: Sequence[State]) -> State:
        forget, gates = jnp.split(self.input_gates(x), [self.hidden])
        h = sum((child.h for child in children), jnp.zeros(self.hidden))
        i, o, u = jnp.split(gates + self.sum_gates(h), 3)
        kept = sum(nnx.sigmoid(forget + self.child_forget(child.h)) * child.c for child in children)
        c = nnx.sigmoid(i) * jnp.tanh(u) + kept
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    def nodes(self, tree: Syntax[int]) -> list[tuple[Array, State]]:
        """The inputs and states of all nodes in post-order: the root's are the last."""
        nodes: list[tuple[Array, State]] = []
        children: list[State] = []
        for child in tree.children:
            nodes += self.nodes(child)
            children.append(nodes[-1][1])
        x = self.inputs(tree.kind, tree.field, tree.tokens)
        return [*nodes, (x, self.node(x, children))]

    @jitbatch
    def logits(self, tree: Syntax[int]) -> Array:
        """A score for each first word of a name."""
        inputs, states = zip(*self.nodes(tree), strict=True)
        largest = jnp.stack([state.h for state in states]).max(axis=0)
        return self.out(jnp.concatenate([largest, sum(inputs)]))

    @jitbatch
    def loss(self, sample: Function) -> Array:
        """The cross entropy of the first word of the name."""
        return cross_entropy(self.logits(sample.tree), sample.name)

    @jitbatch
    def predict(self, sample: Function) -> Array:
        """The most likely first word."""
        return self.logits(sample.tree).argmax()
