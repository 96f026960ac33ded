"""Taggers: a class for each word of a sentence."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.tagging import Spelled, Tagged, Words
from jitbatch.models.losses import cross_entropy
from jitbatch.models.lstm import BiLSTM


class Tagger(nnx.Module):
    """A BiLSTM over the embeddings of words."""

    def __init__(self, words: int, tags: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.context = BiLSTM(embedding, hidden, rngs=rngs)
        self.out = nnx.Linear(2 * hidden, tags, rngs=rngs)

    @jitbatch
    def word(self, word: int) -> Array:
        return self.embed(jnp.asarray(word))

    @jitbatch
    def scores(self, left: Array, right: Array) -> Array:
        return self.out(jnp.concatenate([left, right]))

    def vectors(self, words: Words) -> list[Array]:
        return [self.word(word) for word in words]

    def logits(self, words: Words) -> list[Array]:
        """For each word a score for each tag."""
        return [self.scores(*both) for both in self.context(self.vectors(words))]

    @jitbatch
    def loss(self, sample: Tagged) -> Array:
        """The sum of the losses of all words."""
        losses = map(cross_entropy, self.logits(sample.words), sample.tags)
        return sum(losses, jnp.zeros(()))

    @jitbatch(out="ragged")
    def predict(self, words: Words) -> list[Array]:
        """The most likely tag of each word."""
        return [scores.argmax() for scores in self.logits(words)]


class CharacterTagger(Tagger):
    """A `Tagger` with a second BiLSTM, which reads the characters of each word."""

    def __init__(
        self,
        words: int,
        characters: int,
        tags: int,
        embedding: int = 64,
        hidden: int = 64,
        character_embedding: int = 16,
        character_hidden: int = 16,
        *,
        rngs: nnx.Rngs,
    ):
        super().__init__(words, tags, embedding + 2 * character_hidden, hidden, rngs=rngs)
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.embed_character = nnx.Embed(characters, character_embedding, rngs=rngs)
        self.spelling = BiLSTM(character_embedding, character_hidden, rngs=rngs)

    @jitbatch
    def character(self, character: int) -> Array:
        return self.embed_character(jnp.asarray(character))

    @jitbatch
    def spelled(self, word: Spelled) -> Array:
        spelling = self.spelling.ends([self.character(character) for character in word.characters])
        return jnp.concatenate([self.embed(jnp.asarray(word.word)), *spelling])

    def vectors(self, words: Words) -> list[Array]:
        return [self.spelled(word) for word in words]
