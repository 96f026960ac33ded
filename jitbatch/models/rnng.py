"""Recurrent neural network grammars (RNNG; Dyer et al., 2016), in their discriminative form: a parser of constituents.

A stack holds words, phrases and open nonterminals. Three kinds of actions build the tree from the top: open a
nonterminal, shift the next word, and close the innermost open nonterminal, with all that stands above it, to a phrase.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jitbatch import jitbatch, value
from jitbatch.models.losses import cross_entropy
from jitbatch.models.lstm import LSTM, BiLSTM
from jitbatch.models.parser import Item, item, most_likely, top
from jitbatch.models.tree_lstm import State

SHIFT, CLOSE, OPEN = range(3)  # as action ids; from OPEN on there is one for each label
Tree = Any
"""A word, or a pair `(label, children)`."""


class Parse(NamedTuple):
    """The state of a parse. Stack and buffer have their top at the end; `opened` are positions on the stack."""

    stack: tuple[Item, ...]
    buffer: tuple[Item, ...]
    opened: tuple[int, ...]
    done: State


class RNNG(nnx.Module):
    """A recurrent neural network grammar (Dyer et al., 2016), discriminative: a parser of constituents.

    LSTMs read the stack, the words ahead and the actions so far. A BiLSTM computes one vector for the children of a
    phrase.

    >>> model = RNNG(words=9, labels=3, embedding=4, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch([(0, [(1, [5, 6]), 7]), (0, [8])]).shape
    (2,)
    >>> len(model.parse([np.array([5, 6, 7]), np.array([8])]))
    2
    """

    def __init__(
        self, words: int, labels: int, embedding: int = 64, hidden: int = 64, deepest: int = 8, *, rngs: nnx.Rngs
    ):
        self.actions, self.deepest = OPEN + labels, deepest
        self.embed_word = nnx.Embed(words, embedding, rngs=rngs)
        self.embed_label = nnx.Embed(labels, embedding, rngs=rngs)
        self.embed_action = nnx.Embed(self.actions, embedding, rngs=rngs)
        self.stack = LSTM(embedding, hidden, rngs=rngs)
        self.buffer = LSTM(embedding, hidden, rngs=rngs)
        self.history = LSTM(embedding, hidden, rngs=rngs)
        self.children = BiLSTM(embedding, hidden, rngs=rngs)
        self.phrase = nnx.Linear(2 * hidden, embedding, rngs=rngs)
        self.summary = nnx.Linear(3 * hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, self.actions, rngs=rngs)

    # The computation

    @jitbatch
    def word(self, word: int) -> Array:
        return self.embed_word(jnp.asarray(word))

    @jitbatch
    def label(self, label: int) -> Array:
        return self.embed_label(jnp.asarray(label))

    @jitbatch
    def action(self, action: int) -> Array:
        return self.embed_action(jnp.asarray(action))

    @jitbatch
    def compose(self, forward: Array, backward: Array) -> Array:
        return jnp.tanh(self.phrase(jnp.concatenate([forward, backward])))

    @jitbatch
    def scores(self, stack: State, buffer: State, done: State, legal: np.ndarray) -> Array:
        summary = jnp.tanh(self.summary(jnp.concatenate([stack.h, buffer.h, done.h])))
        return jnp.where(legal, self.out(summary), -1e9)

    # How a sentence is parsed

    def start(self, words: Iterable[Any]) -> Parse:
        """Nothing is on the stack, and the buffer was read from its end."""
        buffer: tuple[Item, ...] = ()
        for word in reversed(list(words)):
            buffer = (*buffer, item(self.buffer, buffer, self.word(word)))
        return Parse((), buffer, (), self.history.first)

    def logits(self, now: Parse) -> Array:
        """A score for each action."""
        legal = legal_actions(now, self.actions, self.deepest)
        return self.scores(top(self.stack, now.stack), top(self.buffer, now.buffer), now.done, legal)

    def act(self, now: Parse, move: int, label: Any = 0) -> Parse:
        """The state after an action; `label` is that of a nonterminal that is opened."""
        stack, buffer, opened, done = now
        done = self.history.step(done, self.action(move + label))
        if move == OPEN:
            return Parse((*stack, item(self.stack, stack, self.label(label))), buffer, (*opened, len(stack)), done)
        if move == SHIFT:
            return Parse((*stack, item(self.stack, stack, buffer[-1].vector)), buffer[:-1], opened, done)
        below, (first, *others) = stack[: opened[-1]], [part.vector for part in stack[opened[-1] :]]
        forward = self.children.forward([first, *others])[-1]  # the label, then its children
        backward = self.children.backward([first, *reversed(others)])[-1]
        return Parse((*below, item(self.stack, below, self.compose(forward.h, backward.h))), buffer, opened[:-1], done)

    @jitbatch
    def loss(self, tree: Tree) -> Array:
        """The sum of the losses of the actions that build a tree."""
        now, losses = self.start(words_of(tree)), []
        for move, label in oracle(tree):
            losses.append(cross_entropy(self.logits(now), move + label))
            now = self.act(now, move, label)
        return sum(losses, jnp.zeros(()))

    @jitbatch
    async def decode(self, words: np.ndarray) -> Array:
        """The log-probability of a parse by the most likely action before each of them. Its decisions are the parse."""
        now, total = self.start(words), jnp.zeros(())
        while now.buffer or now.opened:
            best, likely = most_likely(self.logits(now))
            action = await value(best)
            total = total + likely
            now = self.act(now, min(action, OPEN), max(action - OPEN, 0))
        return total

    def parse(self, sentences: Sequence[np.ndarray]) -> list[Tree]:
        """The trees of some sentences, by the most likely actions one after the other."""
        answers = self.decode.rollout(sentences).decisions.answers
        return [tree_of(actions, words) for actions, words in zip(answers, sentences, strict=True)]


def legal_actions(now: Parse, actions: int, deepest: int) -> np.ndarray:
    """Which actions are possible: a phrase has children, and the outermost one has all words."""
    stack, buffer, opened, _ = now
    has_children = bool(opened) and opened[-1] < len(stack) - 1
    shift, close = bool(buffer and opened), has_children and not (buffer and len(opened) == 1)
    return np.array([shift, close, *[bool(buffer) and len(opened) < deepest] * (actions - OPEN)])


def words_of(tree: Tree) -> Iterator[Any]:
    """The words of a tree, from left to right."""
    if isinstance(tree, tuple):
        for child in tree[1]:
            yield from words_of(child)
    else:
        yield tree


def oracle(tree: Tree) -> Iterator[tuple[int, Any]]:
    """The actions that build a tree, as moves and labels.

    >>> list(oracle((7, [1, (8, [2])])))
    [(2, 7), (0, 0), (2, 8), (0, 0), (1, 0), (1, 0)]
    """
    if not isinstance(tree, tuple):
        yield SHIFT, 0
        return
    label, children = tree
    yield OPEN, label
    for child in children:
        yield from oracle(child)
    yield CLOSE, 0


def tree_of(actions: Sequence[int], words: Iterable[int]) -> Tree:
    """The tree that actions build.

    >>> tree_of([9, 0, 10, 0, 1, 1], [1, 2])
    (7, [1, (8, [2])])
    """
    remaining = iter(words)
    done: list[Tree] = []
    opened: list[tuple[int, list[Tree]]] = [(-1, done)]
    for action in actions:
        if action >= OPEN:
            opened.append((action - OPEN, []))
        else:
            part = int(next(remaining)) if action == SHIFT else opened.pop()
            opened[-1][1].append(part)
    return done[0]
