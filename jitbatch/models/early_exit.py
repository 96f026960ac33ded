"""Early exit (BERxiT; Xin et al., 2021): layers with shared weights. A sample may stop after each layer."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch, value


class EarlyExit(nnx.Module):
    """A classifier of sentences that stops at the first exit with a sure prediction.

    >>> import numpy as np
    >>> model = EarlyExit(10, 3, hidden=4, layers=3, rngs=nnx.Rngs(0))
    >>> run = model.classify.rollout([np.array([1, 2, 3]), np.array([4, 5])])
    >>> run.outputs.shape
    (2, 3)
    """

    def __init__(
        self, words: int, classes: int, hidden: int = 64, layers: int = 12, sure: float = 0.9, *, rngs: nnx.Rngs
    ):
        self.layers = layers
        self.sure = sure
        self.embed = nnx.Embed(words, hidden, rngs=rngs)
        self.query = nnx.Linear(hidden, 3 * hidden, rngs=rngs)
        self.inner = nnx.Linear(hidden, 2 * hidden, rngs=rngs)
        self.outer = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.norm = nnx.LayerNorm(hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, classes, rngs=rngs)

    @jitbatch
    def layer(self, xs: Array) -> Array:
        """A layer over the words of a sentence: attention, and a network for each word."""
        queries, keys, values = jnp.split(self.query(xs), 3, axis=-1)
        attention = jax.nn.softmax(queries @ keys.T / jnp.sqrt(float(xs.shape[-1])), axis=-1)
        xs = self.norm(xs + attention @ values)
        return self.norm(xs + self.outer(nnx.gelu(self.inner(xs))))

    @jitbatch
    def exit(self, xs: Array) -> tuple[Array, Array]:
        """Scores of the classes, and whether they are sure."""
        logits = self.out(xs.mean(axis=0))
        return logits, jax.nn.softmax(logits).max() > self.sure

    @jitbatch
    def begin(self, words: Array) -> Array:
        return self.embed(jnp.asarray(words))

    @jitbatch
    async def classify(self, words: Array) -> Array:
        """The scores of the first exit that is sure, or of the last one."""
        xs = self.begin(words)
        for _ in range(self.layers - 1):
            xs = self.layer(xs)
            logits, is_sure = self.exit(xs)
            if await value(is_sure):
                return logits
        return self.exit(self.layer(xs))[0]
