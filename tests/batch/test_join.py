"""Concatenation: the graphs of a batch as one, with nothing mixed up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch import jitbatch
from jitbatch.batch.join import Piece, join
from jitbatch.batch.retype import typed
from jitbatch.batch.types import Types
from jitbatch.util.csr import offsets, ranges


@jitbatch
def leaf(w: Any, x: Any) -> Any:
    return w * x, jnp.sum(x)


@jitbatch
def both(w: Any, x: Any, y: Any) -> Any:
    return jnp.sin(x[0]) - y[0] + w, x[1] * y[1]


def encode(w: Any, tree: Any) -> Any:
    return both(w, *(encode(w, child) for child in tree)) if isinstance(tree, tuple) else leaf(w, tree)


@pytest.fixture(scope="module")
def pieces() -> tuple[list[Piece], Types]:
    x = np.float32([1, 2])
    batched = jitbatch(lambda w, tree: (encode(w, tree), w), out="list")
    plan = batched.plan(x, [((x, x), x), x, (x, x)])
    (context,) = batched._planner.contexts
    types = plan.static.types
    assert types is not None
    return typed(list(context.graphs), types), types


def test_every_piece_is_found_again(pieces: tuple[list[Piece], Types]) -> None:
    batch = join(pieces[0], pieces[1].made)
    value = node = operand = out = given_inputs = given_shared = 0
    for piece in pieces[0]:
        count, values, operands, inputs, shared = piece.sizes
        nodes = slice(node, node + count)
        kind, level, layer, arity, first, *_ = piece.nodes
        assert batch.type[nodes].tolist() == kind.tolist()
        assert batch.level[nodes].tolist() == level.tolist()
        assert batch.layer[nodes].tolist() == layer.tolist()
        assert np.diff(batch.operand_start)[nodes].tolist() == arity.tolist()
        assert (batch.first_value[nodes] - value).tolist() == first.tolist()
        read = slice(operand, operand + operands)
        assert (batch.operands[read] - value).tolist() == piece.operands[0].tolist()
        assert batch.place[read].tolist() == piece.operands[1].tolist()
        assert (batch.outputs[out : out + len(piece.outputs)] - value).tolist() == piece.outputs.tolist()
        given = slice(given_inputs, given_inputs + inputs)
        assert (batch.input_values[given] - value).tolist() == list(range(inputs))
        assert batch.input_class[given].tolist() == piece.inputs.of_input[0].tolist()
        assert batch.input_row[given].tolist() == piece.inputs.of_input[1].tolist()
        given = slice(given_shared, given_shared + shared)
        assert (batch.shared_values[given] - value).tolist() == list(range(inputs, inputs + shared))
        assert batch.shared_numbers[given].tolist() == piece.shared.tolist()
        value, node, operand, out = value + values, nodes.stop, read.stop, out + len(piece.outputs)
        given_inputs, given_shared = given_inputs + inputs, given_shared + shared
    assert value == batch.values
    assert node == len(batch.type)
    assert batch.operand_start[-1] == len(batch.operands) == operand


def test_producers(pieces: tuple[list[Piece], Types]) -> None:
    batch = join(pieces[0], pieces[1].made)
    made = [
        (int(first) + output, node)
        for node, (first, kind) in enumerate(zip(batch.first_value, batch.type, strict=True))
        for output in range(batch.made[kind])
    ]
    want = np.full(batch.values, -1)
    for value, node in made:
        want[value] = node
    assert batch.producer.tolist() == want.tolist()
    assert np.flatnonzero(want < 0).tolist() == sorted([*batch.input_values, *batch.shared_values])


def test_offsets() -> None:
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets([]).tolist() == [0]


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=6))
def test_ranges(pairs: list[tuple[int, int]]) -> None:
    starts, counts = np.array(pairs, int).reshape(-1, 2).T
    want = [start + i for start, count in pairs for i in range(count)]
    assert ranges(starts, counts).tolist() == want
