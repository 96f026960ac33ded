"""The sentiment of every phrase of a sentence."""

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Sentence, Tree
from jitbatch.models.tree_lstm import NaryTreeLSTM, State


class Sentiment(nnx.Module):
    """A binary Tree-LSTM with a class, and a loss, at each node."""

    def __init__(self, words: int, embedding: int = 300, hidden: int = 150, classes: int = 5, *, rngs: nnx.Rngs):
        self.encoder = NaryTreeLSTM(words, embedding, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, classes, rngs=rngs)

    @jitbatch
    def node_loss(self, state: State, label: int) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(self.out(state.h), label)

    @jitbatch
    def loss(self, sample: Sentence) -> Array:
        """The sum of the losses of all nodes."""
        states = self.encoder.states(sample.tree)
        return sum((self.node_loss(*node) for node in zip(states, sample.labels, strict=True)), jnp.zeros(()))

    @jitbatch
    def logits(self, tree: Tree) -> Array:
        """A score for each class of the whole sentence."""
        return self.out(self.encoder(tree).h)

    @jitbatch
    def predict(self, tree: Tree) -> Array:
        """The most likely class of the whole sentence."""
        return self.logits(tree).argmax()
