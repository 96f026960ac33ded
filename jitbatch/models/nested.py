"""A recurrent network inside of another, both over a varying number of steps: the benchmark NestedRNN of ACRoBat
(Fegade et al., 2024)."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.sequences import Document
from jitbatch.models.losses import cross_entropy


class NestedRNN(nnx.Module):
    """Two nested RNNs: a plain RNN reads the words of a sentence, and a GRU reads the sentences.

    The plain RNN begins with the state of the GRU.

    >>> from jitbatch.data import make_documents
    >>> (samples,) = make_documents(0, [3])
    >>> model = NestedRNN(words=20, classes=4, embedding=4, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch(samples).shape
    (3,)
    """

    def __init__(self, words: int, classes: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.hidden = hidden
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.inner = nnx.Linear(embedding + hidden, hidden, rngs=rngs)
        self.gates = nnx.Linear(2 * hidden, 2 * hidden, rngs=rngs)
        self.candidate = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, classes, rngs=rngs)

    @jitbatch
    def read_word(self, h: Array, word: int) -> Array:
        return jnp.tanh(self.inner(jnp.concatenate([self.embed(jnp.asarray(word)), h])))

    @jitbatch
    def read_sentence(self, h: Array, sentence: Array) -> Array:
        z, r = jnp.split(nnx.sigmoid(self.gates(jnp.concatenate([sentence, h]))), 2)
        return z * h + (1 - z) * jnp.tanh(self.candidate(jnp.concatenate([sentence, r * h])))

    @jitbatch
    def logits(self, sentences: tuple[np.ndarray, ...]) -> Array:
        """A score for each class."""
        outer = jnp.zeros(self.hidden)
        for sentence in sentences:
            inner = outer
            for word in sentence:
                inner = self.read_word(inner, word)
            outer = self.read_sentence(outer, inner)
        return self.out(outer)

    @jitbatch
    def loss(self, sample: Document) -> Array:
        """The cross entropy of the class."""
        return cross_entropy(self.logits(sample.sentences), sample.label)

    @jitbatch
    def predict(self, sample: Document) -> Array:
        """The most likely class."""
        return self.logits(sample.sentences).argmax()
