"""The sentiment of every phrase of a sentence."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Sentence, Tree
from jitbatch.models.tree_encoder import TreeEncoder
from jitbatch.models.tree_lstm import NaryTreeLSTM


class Sentiment(nnx.Module):
    """A binary Tree-LSTM, or another encoder of trees, with a class, and a loss, at each node."""

    def __init__(
        self,
        words: int,
        embedding: int = 300,
        hidden: int = 150,
        classes: int = 5,
        encoder: Callable[..., TreeEncoder] = NaryTreeLSTM,
        *,
        rngs: nnx.Rngs,
    ):
        self.encoder = encoder(words, embedding, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, classes, rngs=rngs)

    @jitbatch
    def node_loss(self, h: Array, label: int) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(self.out(h), label)

    @jitbatch
    def loss(self, sample: Sentence) -> Array:
        """The sum of the losses of all nodes."""
        outputs = self.encoder.outputs(sample.tree)
        return sum((self.node_loss(*node) for node in zip(outputs, sample.labels, strict=True)), jnp.zeros(()))

    @jitbatch
    def logits(self, tree: Tree) -> Array:
        """A score for each class of the whole sentence."""
        return self.out(self.encoder.outputs(tree)[-1])

    @jitbatch
    def predict(self, tree: Tree) -> Array:
        """The most likely class of the whole sentence."""
        return self.logits(tree).argmax()
