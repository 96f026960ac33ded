"""How related two sentences are (Tai et al., 2015)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Dependency, Pair
from jitbatch.models.tree_lstm import ChildSumTreeLSTM, State

SCORES = 5


class Similarity(nnx.Module):
    """One child-sum Tree-LSTM reads both sentences; their product and distance give a distribution over scores."""

    def __init__(self, words: int, embedding: int = 300, hidden: int = 150, compared: int = 50, *, rngs: nnx.Rngs):
        self.encoder = ChildSumTreeLSTM(words, embedding, hidden, rngs=rngs)
        self.compare = nnx.Linear(2 * hidden, compared, rngs=rngs)
        self.out = nnx.Linear(compared, SCORES, rngs=rngs)

    @jitbatch
    def log_probabilities(self, left: State, right: State) -> Array:
        features = jnp.concatenate([left.h * right.h, jnp.abs(left.h - right.h)])
        return jax.nn.log_softmax(self.out(nnx.sigmoid(self.compare(features))))

    @jitbatch
    def loss(self, sample: Pair) -> Array:
        """The Kullback-Leibler divergence of the predicted distribution from the given one."""
        predicted = self.log_probabilities(self.encoder(sample.left), self.encoder(sample.right))
        return jnp.sum(jax.scipy.special.xlogy(sample.target, sample.target) - sample.target * predicted)

    @jitbatch
    def predict(self, left: Dependency, right: Dependency) -> Array:
        """The expected score, from 1 to 5."""
        predicted = self.log_probabilities(self.encoder(left), self.encoder(right))
        return jnp.exp(predicted) @ jnp.arange(1.0, SCORES + 1)
