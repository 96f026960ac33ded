"""Decoders that choose their words: greedily, and by beam search."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jitbatch import jitbatch, value
from jitbatch.models.lstm import LSTMCell
from jitbatch.models.tree_lstm import State


class Hypothesis(NamedTuple):
    """The words so far, the state after them, and their log-probability."""

    words: tuple[int, ...]
    state: State
    score: float


class Decoder(nnx.Module):
    """A decoder that writes words from a first state until it writes the end.

    >>> import jax.numpy as jnp
    >>> model = Decoder(6, hidden=4, longest=5, rngs=nnx.Rngs(0))
    >>> contexts = [jnp.ones(4), jnp.zeros(4)]
    >>> model.greedy.rollout(contexts).outputs.shape, len(model.beam.batch(contexts))
    ((2,), 2)
    """

    def __init__(
        self, words: int, hidden: int = 64, longest: int = 20, width: int = 3, end: int = 0, *, rngs: nnx.Rngs
    ):
        self.longest, self.width, self.end = longest, width, end
        self.embed = nnx.Embed(words, hidden, rngs=rngs)
        self.cell = LSTMCell(hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, words, rngs=rngs)

    @jitbatch
    def word(self, word: int) -> Array:
        return self.embed(jnp.asarray(word))

    @jitbatch
    def best(self, state: State) -> tuple[Array, Array]:
        """The most likely next words, and their log-probabilities."""
        likely, words = jax.lax.top_k(jax.nn.log_softmax(self.out(state.h)), self.width)
        return words, likely

    @jitbatch
    async def greedy(self, context: Array) -> Array:
        """The log-probability of the words that are most likely one after the other. Its decisions are the words."""
        state, word, total = State(context, jnp.zeros_like(context)), self.end, jnp.zeros(())
        for _ in range(self.longest):
            state = self.cell.step(state, self.word(word))
            words, likely = self.best(state)
            total = total + likely[0]
            word = await value(words[0])
            if word == self.end:
                break
        return total

    @jitbatch(out="list")
    async def beam(self, context: Array) -> tuple[list[int], float]:
        """The words of the best hypothesis of a beam search, and their log-probability."""
        hypotheses = [Hypothesis((), State(context, jnp.zeros_like(context)), 0.0)]
        done: list[Hypothesis] = []
        for _ in range(self.longest):
            states = [self.cell.step(h.state, self.word((self.end, *h.words)[-1])) for h in hypotheses]
            answers = await value([self.best(state) for state in states])
            grown = [
                Hypothesis((*h.words, word), state, h.score + score)
                for h, state, (words, likely) in zip(hypotheses, states, answers, strict=True)
                for word, score in zip(words.tolist(), np.asarray(likely, np.float64).tolist(), strict=True)
            ]
            grown.sort(key=lambda h: -h.score)
            done += [h for h in grown[: self.width] if h.words[-1] == self.end]
            hypotheses = [h for h in grown[: self.width] if h.words[-1] != self.end]
            if not hypotheses or (done and max(h.score for h in done) >= hypotheses[0].score):
                break
        best = max([*done, *hypotheses], key=lambda h: h.score)
        return list(best.words), best.score
