"""A model of the relatedness of two sentences (Tai et al., 2015)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Dependency, Pair
from jitbatch.models.tree_encoder import TreeEncoder
from jitbatch.models.tree_lstm import ChildSumTreeLSTM

SCORES = 5


class Similarity(nnx.Module):
    """A child-sum Tree-LSTM, or another encoder, reads both sentences; their product and distance give a distribution
    over scores."""

    def __init__(
        self,
        words: int,
        embedding: int = 300,
        hidden: int = 150,
        compared: int = 50,
        encoder: Callable[..., TreeEncoder] = ChildSumTreeLSTM,
        *,
        rngs: nnx.Rngs,
    ):
        self.encoder = encoder(words, embedding, hidden, rngs=rngs)
        self.compare = nnx.Linear(2 * hidden, compared, rngs=rngs)
        self.out = nnx.Linear(compared, SCORES, rngs=rngs)

    @jitbatch
    def log_probabilities(self, left: Array, right: Array) -> Array:
        features = jnp.concatenate([left * right, jnp.abs(left - right)])
        return jax.nn.log_softmax(self.out(nnx.sigmoid(self.compare(features))))

    def roots(self, left: Dependency, right: Dependency) -> tuple[Array, Array]:
        return self.encoder.outputs(left)[-1], self.encoder.outputs(right)[-1]

    @jitbatch
    def loss(self, sample: Pair) -> Array:
        """The Kullback-Leibler divergence of the predicted distribution from the given one."""
        predicted = self.log_probabilities(*self.roots(sample.left, sample.right))
        return jnp.sum(jax.scipy.special.xlogy(sample.target, sample.target) - sample.target * predicted)

    @jitbatch
    def predict(self, left: Dependency, right: Dependency) -> Array:
        """The expected score, from 1 to 5."""
        predicted = self.log_probabilities(*self.roots(left, right))
        return jnp.exp(predicted) @ jnp.arange(1.0, SCORES + 1)
