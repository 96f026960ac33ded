"""LSTMs over sequences, in one and in both directions."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.models.tree_lstm import State


class LSTMCell(nnx.Module):
    """A step of an LSTM."""

    def __init__(self, inputs: int, hidden: int, *, rngs: nnx.Rngs):
        self.gates = nnx.Linear(inputs + hidden, 4 * hidden, rngs=rngs)

    @jitbatch
    def step(self, state: State, x: Array) -> State:
        i, f, o, u = jnp.split(self.gates(jnp.concatenate([x, state.h])), 4)
        c = nnx.sigmoid(f + 1) * state.c + nnx.sigmoid(i) * jnp.tanh(u)
        return State(nnx.sigmoid(o) * jnp.tanh(c), c)

    def states(self, before: State, xs: Iterable[Array]) -> list[State]:
        """The state after each input."""
        states = [before]
        for x in xs:
            states.append(self.step(states[-1], x))
        return states[1:]


class LSTM(LSTMCell):
    """An LSTM with a learnt first state."""

    def __init__(self, inputs: int, hidden: int, *, rngs: nnx.Rngs):
        super().__init__(inputs, hidden, rngs=rngs)
        self.first_h = nnx.Param(jnp.zeros(hidden))
        self.first_c = nnx.Param(jnp.zeros(hidden))

    @property
    def first(self) -> State:
        """The state before anything was read."""
        return State(self.first_h[...], self.first_c[...])

    def __call__(self, xs: Iterable[Array]) -> list[State]:
        """The state after each input."""
        return self.states(self.first, xs)


class BiLSTM(nnx.Module):
    """One LSTM reads from left to right, another from right to left."""

    def __init__(self, inputs: int, hidden: int, *, rngs: nnx.Rngs):
        self.forward = LSTM(inputs, hidden, rngs=rngs)
        self.backward = LSTM(inputs, hidden, rngs=rngs)

    def __call__(self, xs: Sequence[Array]) -> list[tuple[Array, Array]]:
        """For each input, the outputs of both directions."""
        pairs = zip(self.forward(xs), reversed(self.backward(xs[::-1])), strict=True)
        return [(left.h, right.h) for left, right in pairs]

    def ends(self, xs: Sequence[Array]) -> tuple[Array, Array]:
        """The last outputs of both directions."""
        return self.forward(xs)[-1].h, self.backward(xs[::-1])[-1].h
