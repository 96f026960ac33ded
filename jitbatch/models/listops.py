"""A Tree-LSTM that learns to evaluate ListOps expressions."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.listops import SYMBOLS, Expression, ListOps


class ListOpsTreeLSTM(nnx.Module):
    """A Tree-LSTM for ListOps: an operator reads its arguments from left to right, as an LSTM reads words.

    The value of a nested expression is represented by the mean of the embeddings of the ten digits, weighted by their
    probabilities. So the model treats digits and expressions as arguments alike.
    """

    def __init__(self, hidden: int = 128, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(len(SYMBOLS), hidden, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.gates = nnx.Linear(2 * hidden, 4 * hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, 10, rngs=rngs)

    @jitbatch
    def symbol(self, token: int) -> Array:
        return self.embed(jnp.asarray(token))

    @jitbatch
    def read(self, h: Array, c: Array, argument: Array) -> tuple[Array, Array]:
        i, f, o, u = jnp.split(self.gates(jnp.concatenate([h, argument])), 4)
        c = nnx.sigmoid(f + 1) * c + nnx.sigmoid(i) * jnp.tanh(u)
        return nnx.sigmoid(o) * jnp.tanh(c), c

    @jitbatch
    def digits(self, h: Array) -> Array:
        return jax.nn.softmax(self.out(h)) @ self.embed.embedding[:10]

    def encode(self, expression: Expression) -> Array:
        """The state of an operator that has read its arguments."""
        operator, *arguments = expression
        h = self.symbol(operator)
        c = jnp.zeros_like(h)
        for argument in arguments:
            nested = isinstance(argument, tuple)
            h, c = self.read(h, c, self.digits(self.encode(argument)) if nested else self.symbol(argument))
        return h

    @jitbatch
    def logits(self, expression: Expression) -> Array:
        """A score for each of the ten digits."""
        return self.out(self.encode(expression))

    @jitbatch
    def loss(self, sample: ListOps) -> Array:
        """The cross entropy of the value."""
        return optax.softmax_cross_entropy_with_integer_labels(self.logits(sample.expression), sample.value)

    @jitbatch
    def predict(self, expression: Expression) -> Array:
        """The most likely value."""
        return self.logits(expression).argmax()
