"""Loops over the rows of an array: taggers, directed acyclic graphs in topological order, RNNs, attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jitbatch import Static, jitbatch
from zoo.draw import long_sequences, normal, sequences, token_sequences, weights
from zoo.trees import State
from zoo.workloads import CLASSES, HIDDEN, INPUT, VOCAB, Params, workload

tagger_params = weights(embed=(VOCAB, HIDDEN), x=(HIDDEN, 4 * HIDDEN), h=(HIDDEN, 4 * HIDDEN), out=(HIDDEN, CLASSES))


@jitbatch
def tagger_cell(params: Params, word: Any, state: State) -> tuple[State, Array]:
    i, o, f, u = jnp.split(params["embed"][word] @ params["x"] + state.h @ params["h"], 4)
    c = jax.nn.sigmoid(f) * state.c + jax.nn.sigmoid(i) * jnp.tanh(u)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return State(h, c), jax.nn.log_softmax(h @ params["out"])


@workload(tagger_params, token_sequences)
@jitbatch
def tagger(params: Params, words: Array) -> tuple[Array, Array]:
    """An LSTM whose input projection needs no state, and whose readout nothing waits for."""
    state, scores = State(jnp.zeros(HIDDEN), jnp.zeros(HIDDEN)), []
    for word in words:
        state, score = tagger_cell(params, word, state)
        scores.append(score)
    return state.h, jnp.stack(scores).mean(0)


def random_dags(rng: np.random.Generator, n: int) -> list[Params]:
    """Nodes in topological order with the indices of up to two predecessors, and the same one twice."""

    def edges(size: int) -> tuple[tuple[int, ...], ...]:
        drawn: list[tuple[int, ...]] = [()]
        for node in range(1, size):
            drawn.append(tuple(int(i) for i in rng.integers(node, size=rng.integers(1, 3))))
        return (*drawn, (size - 1, size - 1))

    sizes = [2 + i % 4 for i in range(n)]
    return [{"x": normal(rng, size + 1, INPUT), "edges": Static(edges(size))} for size in sizes]


dag_params = weights(source=(INPUT, HIDDEN), one=(HIDDEN, HIDDEN), two=(HIDDEN, HIDDEN))


@jitbatch
def dag_source(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["source"])


@jitbatch
def dag_one(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["source"] + h @ params["one"])


@jitbatch
def dag_two(params: Params, x: Array, left: Array, right: Array) -> Array:
    return jnp.tanh(x @ params["source"] + left @ params["one"] + right @ params["two"])


@workload(dag_params, random_dags, float_inputs=True, size=5)
@jitbatch
def dag(params: Params, graph: Params) -> Array:
    """Directed acyclic graphs whose nodes are read by several others."""
    cells = (dag_source, dag_one, dag_two)
    values: list[Array] = []
    for x, before in zip(graph["x"], graph["edges"].value, strict=True):
        values.append(cells[len(before)](params, x, *(values[i] for i in before)))
    return values[-1]


# --- Sequences: rows of an input array

rnn_params = weights(x=(INPUT, HIDDEN), h=(HIDDEN, HIDDEN), b=(HIDDEN,), h0=(HIDDEN,))


@jitbatch
def rnn_cell(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])


def run_rnn(params: Params, h: Array, xs: Any) -> list[Array]:
    states: list[Array] = []
    for x in xs:
        h = rnn_cell(params, x, h)
        states.append(h)
    return states


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def rnn(params: Params, xs: Array) -> Array:
    """A loop over rows from a learned initial state."""
    return run_rnn(params, params["h0"], xs)[-1]


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def rnn_from_zeros(params: Params, xs: Array) -> Array:
    """Rows by index, from a state of zeros."""
    h = jnp.zeros(HIDDEN)
    for i in range(xs.shape[0]):
        h = rnn_cell(params, xs[i], h)
    return h


@workload(
    lambda key: {"there": rnn_params(key), "back": rnn_params(jax.random.fold_in(key, 1))},
    sequences,
    float_inputs=True,
)
@jitbatch
def bidirectional_rnn(params: Params, xs: Array) -> dict[str, Array]:
    """Forwards and backwards over the rows, joined at each position."""
    there = run_rnn(params["there"], params["there"]["h0"], xs)
    back = run_rnn(params["back"], params["back"]["h0"], xs[::-1])[::-1]
    joined = [jnp.concatenate(pair) for pair in zip(there, back, strict=True)]
    return {"mean": sum(joined[1:], joined[0]) / len(joined), "ends": jnp.stack([there[-1], back[0]])}


@jitbatch
def pair_cell(params: Params, x: Array, y: Array) -> Array:
    return jnp.tanh((x * y) @ params["x"])


@workload(rnn_params, long_sequences, float_inputs=True)
@jitbatch
def row_access(params: Params, xs: Array) -> dict[str, Array]:
    """Every way to name rows of an input with Python integers and slices."""
    rest = xs[1:]
    pairs = [pair_cell(params, x, y) for x, y in zip(xs, rest, strict=False)]
    h = run_rnn(params, pairs[0], rest)[-1]
    h = run_rnn(params, h, xs[::-1])[-1]
    h = run_rnn(params, h, [xs[0], xs[-1], xs[1], xs[len(xs) - 2]])[-1]
    return {
        "h": h + pairs[-1],
        "last": xs[-1],
        "head": xs[:2],
        "inner": pair_cell(params, xs[1:][0], xs[::2][1]),
        "entry": xs[0, 1] * xs[-1][0],
        "bare": 2.0 * xs[-2] + xs[1:].sum(0),
    }


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def scan_over_rows(params: Params, xs: Array) -> tuple[Array, Array]:
    """A scan over all rows of a sample, outside any subgraph."""

    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = jnp.tanh(x @ params["x"] + h @ params["h"])
        return h, h.max()

    h, peaks = lax.scan(step, params["h0"], xs)
    return h, peaks.sum()


@workload(weights(key=(INPUT, HIDDEN), query=(HIDDEN,), x=(INPUT, HIDDEN)), sequences, float_inputs=True)
@jitbatch
def attention(params: Params, xs: Array) -> Array:
    """As many subgraph results as there are rows, stacked and attended to."""
    values = jnp.stack([pair_cell(params, x, xs[0]) for x in xs])
    scores = jax.nn.softmax(xs @ params["key"] @ params["query"])
    return scores @ values
