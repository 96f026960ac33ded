"""Lattice LSTM (Zhang and Yang, 2018) and lattice GRU: characters are tagged with the help of all words over them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.lattices import Lattice
from jitbatch.models.losses import cross_entropy
from jitbatch.models.tree_lstm import State


class LatticeTagger(nnx.Module):
    """A network over characters, in which a word of the lexicon is a short cut from its first to its last character.

    The paper has a conditional random field above it, which is left out here.
    """

    def __init__(self, characters: int, words: int, tags: int, embedding: int, hidden: int, *, rngs: nnx.Rngs):
        self.hidden = hidden
        self.embed_character = nnx.Embed(characters, embedding, rngs=rngs)
        self.embed_word = nnx.Embed(words, embedding, rngs=rngs)
        self.link = nnx.Linear(embedding + hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, tags, rngs=rngs)

    def outputs(self, sample: Lattice) -> list[Array]:
        """A vector for each character."""
        raise NotImplementedError

    def states(self, sample: Lattice, first: Any, word: Any, character: Any) -> list[Any]:
        """The state after each character.

        Args:
            sample: what is read.
            first: the state before anything was read.
            word: makes what a word passes on, of its number and of the state after its first character.
            character: makes a state, of a character, the state before it and what the words that end here pass on.
        """
        ending: list[list[tuple[int, Any]]] = [[] for _ in sample.characters]
        for (begin, end), word_id in zip(sample.spans.value, sample.words, strict=True):
            ending[end].append((begin, word_id))
        states: list[Any] = []
        for character_id, words in zip(sample.characters, ending, strict=True):
            passed = [word(word_id, states[begin]) for begin, word_id in words]
            states.append(character(character_id, states[-1] if states else first, passed))
        return states

    def mixed(self, x: Array, gate: Array, candidate: Array, words: Sequence[Array]) -> Array:
        """The mean of a character's candidate and of the vectors from words, weighted by the softmax of gates."""
        own_weight = jnp.exp(gate)
        weights = [jnp.exp(nnx.sigmoid(self.link(jnp.concatenate([x, word])))) for word in words]
        passed = sum(weight * word for weight, word in zip(weights, words, strict=True))
        return (own_weight * candidate + passed) / (own_weight + sum(weights))

    @jitbatch
    def scores(self, h: Array) -> Array:
        return self.out(h)

    def logits(self, sample: Lattice) -> list[Array]:
        """For each character a score for each tag."""
        return [self.scores(h) for h in self.outputs(sample)]

    @jitbatch
    def loss(self, sample: Lattice) -> Array:
        """The sum of the losses of all characters."""
        return sum(map(cross_entropy, self.logits(sample), sample.tags), jnp.zeros(()))

    @jitbatch(out="ragged")
    def predict(self, sample: Lattice) -> list[Array]:
        """The most likely tag of each character."""
        return [scores.argmax() for scores in self.logits(sample)]


class LatticeLSTM(LatticeTagger):
    """A lattice LSTM (Zhang and Yang, 2018): each word passes a memory cell to its last character.

    >>> from jitbatch.data import make_lattices
    >>> (samples,) = make_lattices(0, [3])
    >>> model = LatticeLSTM(characters=30, words=40, tags=3, embedding=4, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch(samples).shape
    (3,)
    """

    def __init__(
        self, characters: int, words: int, tags: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs
    ):
        super().__init__(characters, words, tags, embedding, hidden, rngs=rngs)
        self.gates = nnx.Linear(embedding + hidden, 4 * hidden, rngs=rngs)
        self.word_gates = nnx.Linear(embedding + hidden, 3 * hidden, rngs=rngs)

    @jitbatch
    def word(self, word: int, first: State) -> Array:
        x = self.embed_word(jnp.asarray(word))
        i, f, u = jnp.split(self.word_gates(jnp.concatenate([x, first.h])), 3)
        return nnx.sigmoid(f) * first.c + nnx.sigmoid(i) * jnp.tanh(u)

    @jitbatch
    def character(self, character: int, before: State, words: Sequence[Array]) -> State:
        x = self.embed_character(jnp.asarray(character))
        i, f, o, u = jnp.split(self.gates(jnp.concatenate([x, before.h])), 4)
        i, u = nnx.sigmoid(i), jnp.tanh(u)
        c = self.mixed(x, i, u, words) if words else nnx.sigmoid(f) * before.c + i * u
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    def outputs(self, sample: Lattice) -> list[Array]:
        nothing = jnp.zeros(self.hidden)
        return [state.h for state in self.states(sample, State(nothing, nothing), self.word, self.character)]


class LatticeGRU(LatticeTagger):
    """A lattice GRU: each word passes a state to its last character.

    >>> from jitbatch.data import make_lattices
    >>> (samples,) = make_lattices(0, [3])
    >>> model = LatticeGRU(characters=30, words=40, tags=3, embedding=4, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch(samples).shape
    (3,)
    """

    def __init__(
        self, characters: int, words: int, tags: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs
    ):
        super().__init__(characters, words, tags, embedding, hidden, rngs=rngs)
        self.gates = nnx.Linear(embedding + hidden, 2 * hidden, rngs=rngs)
        self.candidate = nnx.Linear(embedding + hidden, hidden, rngs=rngs)
        self.word_gates = nnx.Linear(embedding + hidden, 2 * hidden, rngs=rngs)
        self.word_candidate = nnx.Linear(embedding + hidden, hidden, rngs=rngs)

    @jitbatch
    def word(self, word: int, first: Array) -> Array:
        x = self.embed_word(jnp.asarray(word))
        z, r = jnp.split(nnx.sigmoid(self.word_gates(jnp.concatenate([x, first]))), 2)
        u = jnp.tanh(self.word_candidate(jnp.concatenate([x, r * first])))
        return (1 - z) * first + z * u

    @jitbatch
    def character(self, character: int, before: Array, words: Sequence[Array]) -> Array:
        x = self.embed_character(jnp.asarray(character))
        z, r = jnp.split(nnx.sigmoid(self.gates(jnp.concatenate([x, before]))), 2)
        u = jnp.tanh(self.candidate(jnp.concatenate([x, r * before])))
        return self.mixed(x, z, u, words) if words else (1 - z) * before + z * u

    def outputs(self, sample: Lattice) -> list[Array]:
        return self.states(sample, jnp.zeros(self.hidden), self.word, self.character)
