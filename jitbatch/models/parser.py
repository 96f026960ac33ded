"""A transition-based dependency parser with a stack LSTM (Dyer et al., 2015)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jitbatch import Static, jitbatch, value
from jitbatch.data.transitions import LEFT, SHIFT, Transitions, legal_actions, move_and_relation, number_of_actions
from jitbatch.models.losses import cross_entropy
from jitbatch.models.lstm import LSTM
from jitbatch.models.tree_lstm import State


class Item(NamedTuple):
    """A word or phrase on the stack or in the buffer, and the state of the LSTM that has read it and all below it."""

    vector: Array
    state: State


class Configuration(NamedTuple):
    """The state of a parser: its stack and its buffer, both with the top at the end, and the actions so far."""

    stack: tuple[Item, ...]
    buffer: tuple[Item, ...]
    done: State


class StackLSTMParser(nnx.Module):
    """An arc-standard dependency parser with stack LSTMs (Dyer et al., 2015).

    One LSTM reads the stack, one reads the buffer from its end, and one reads the actions so far.
    """

    def __init__(self, words: int, tags: int, relations: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.actions = number_of_actions(relations)
        self.embed_word = nnx.Embed(words, embedding, rngs=rngs)
        self.embed_tag = nnx.Embed(tags, embedding, rngs=rngs)
        self.embed_action = nnx.Embed(self.actions, embedding, rngs=rngs)
        self.word_input = nnx.Linear(2 * embedding, hidden, rngs=rngs)
        self.stack = LSTM(hidden, hidden, rngs=rngs)
        self.buffer = LSTM(hidden, hidden, rngs=rngs)
        self.history = LSTM(embedding, hidden, rngs=rngs)
        self.phrase = nnx.Linear(2 * hidden + embedding, hidden, rngs=rngs)
        self.summary = nnx.Linear(3 * hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, self.actions, rngs=rngs)

    # The computation

    @jitbatch
    def word(self, word: int, tag: int) -> Array:
        both = [self.embed_word(jnp.asarray(word)), self.embed_tag(jnp.asarray(tag))]
        return nnx.relu(self.word_input(jnp.concatenate(both)))

    @jitbatch
    def action(self, action: int) -> Array:
        return self.embed_action(jnp.asarray(action))

    @jitbatch
    def compose(self, head: Array, dependent: Array, action: Array) -> Array:
        """A head with one more dependent; the action tells their relation."""
        return jnp.tanh(self.phrase(jnp.concatenate([head, dependent, action])))

    @jitbatch
    def scores(self, stack: State, buffer: State, done: State, legal: np.ndarray) -> Array:
        summary = nnx.relu(self.summary(jnp.concatenate([stack.h, buffer.h, done.h])))
        return jnp.where(legal, self.out(summary), -1e9)

    # How a sentence is parsed

    @jitbatch(out="list")
    def start(self, words: np.ndarray, tags: np.ndarray) -> Configuration:
        """Nothing is on the stack, and the buffer was read from its end."""
        buffer: tuple[Item, ...] = ()
        for vector in reversed([self.word(*word_and_tag) for word_and_tag in zip(words, tags, strict=True)]):
            buffer = (*buffer, item(self.buffer, buffer, vector))
        return Configuration((), buffer, self.history.first)

    @jitbatch
    def logits(self, now: Configuration) -> Array:
        """A score for each action."""
        legal = legal_actions(len(now.stack), len(now.buffer), self.actions)
        return self.scores(top(self.stack, now.stack), top(self.buffer, now.buffer), now.done, legal)

    @jitbatch
    def act(self, now: Configuration, move: Static[int], action: int) -> tuple[Item, State]:
        """The new item of the stack after an action, and the state of the actions."""
        embedded = self.action(action)
        done = self.history.step(now.done, embedded)
        if move.value == SHIFT:
            return item(self.stack, now.stack, now.buffer[-1].vector), done
        *below, second, first = now.stack
        head, dependent = (first, second) if move.value == LEFT else (second, first)
        return item(self.stack, below, self.compose(head.vector, dependent.vector, embedded)), done

    def oracle_logits(self, sample: Transitions) -> list[Array]:
        """The scores before each of the oracle's actions."""
        logits = []
        now = self.start(sample.words, sample.tags)
        for move, action in zip(sample.moves.value, sample.actions, strict=True):
            logits.append(self.logits(visible(now)))
            now = after(now, move, *self.act(visible(now), Static(move), action))
        return logits

    @jitbatch
    def loss(self, sample: Transitions) -> Array:
        """The sum of the losses of the oracle's actions."""
        losses = map(cross_entropy, self.oracle_logits(sample), sample.actions)
        return sum(losses, jnp.zeros(()))

    @jitbatch(out="ragged")
    def predict(self, sample: Transitions) -> list[Array]:
        """The most likely action before each of the oracle's."""
        return [logits.argmax() for logits in self.oracle_logits(sample)]

    @jitbatch
    async def decode(self, words: np.ndarray, tags: np.ndarray) -> Array:
        """The log-probability of a parse by the most likely action before each of them. Its decisions are the parse."""
        now, total = self.start(words, tags), jnp.zeros(())
        while now.buffer or len(now.stack) > 1:
            best, likely = most_likely(self.logits(visible(now)))
            action = await value(best)
            move = move_and_relation(action)[0]
            total = total + likely
            now = after(now, move, *self.act(visible(now), Static(move), action))
        return total

    def parse(self, words: Sequence[np.ndarray], tags: Sequence[np.ndarray]) -> list[list[int]]:
        """The most likely actions of some sentences, chosen one after the other."""
        return self.decode.rollout(words, tags).decisions.answers


@jax.jit
def most_likely(logits: Array) -> tuple[Array, Array]:
    """The most likely action, and its log-probability."""
    return logits.argmax(), jax.nn.log_softmax(logits).max()


def visible(now: Configuration) -> Configuration:
    """All that the next action depends on: three items of the stack and one of the buffer."""
    return Configuration(now.stack[-3:], now.buffer[-1:], now.done)


def after(now: Configuration, move: int, new: Item, done: State) -> Configuration:
    """The state after an action that put a new item on the stack."""
    if move == SHIFT:
        return Configuration((*now.stack, new), now.buffer[:-1], done)
    return Configuration((*now.stack[:-2], new), now.buffer, done)


def item(lstm: LSTM, below: Sequence[Item], vector: Array) -> Item:
    return Item(vector, lstm.step(top(lstm, below), vector))


def top(lstm: LSTM, items: Sequence[Item]) -> State:
    return items[-1].state if items else lstm.first
