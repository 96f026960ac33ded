"""Sequence to sequence (Sutskever et al., 2014): one LSTM reads, another one, from its last state on, writes."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.sequences import END, Translation
from jitbatch.models.losses import cross_entropy
from jitbatch.models.lstm import LSTM, LSTMCell


class Seq2Seq(nnx.Module):
    """An encoder and a decoder. The decoder gets the correct words before the one that it predicts (teacher
    forcing)."""

    def __init__(self, source: int, target: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.embed_source = nnx.Embed(source, embedding, rngs=rngs)
        self.embed_target = nnx.Embed(target, embedding, rngs=rngs)
        self.encoder = LSTM(embedding, hidden, rngs=rngs)
        self.decoder = LSTMCell(embedding, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, target, rngs=rngs)

    @jitbatch
    def source_word(self, word: int) -> Array:
        return self.embed_source(jnp.asarray(word))

    @jitbatch
    def target_word(self, word: int) -> Array:
        return self.embed_target(jnp.asarray(word))

    @jitbatch
    def scores(self, h: Array) -> Array:
        return self.out(h)

    def logits(self, sample: Translation) -> list[Array]:
        """The scores of each word of the target, its end among them, given the words before it."""
        *_, read = self.encoder(map(self.source_word, sample.source))
        written = map(self.target_word, [END, *sample.target[:-1]])
        return [self.scores(state.h) for state in self.decoder.states(read, written)]

    @jitbatch
    def loss(self, sample: Translation) -> Array:
        """The sum of the losses of the target's words."""
        return sum(map(cross_entropy, self.logits(sample), sample.target), jnp.zeros(()))

    @jitbatch(out="ragged")
    def predict(self, sample: Translation) -> list[Array]:
        """The most likely word at each place of the target, given the right ones before it."""
        return [scores.argmax() for scores in self.logits(sample)]
