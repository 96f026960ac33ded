"""The graphs of a batch as one: pieces joined, with values numbered over the whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitbatch.batch.fingerprints import Shapes
from jitbatch.ir.input_rows import InputRows
from jitbatch.util.csr import offsets, ranges


@dataclass(frozen=True, eq=False)
class Piece:
    """A graph in terms of the types of a batch, laid out to be joined with others (see `batch/retype`).

    Values are numbered as in a `Graph`: the inputs, the shared values that are rows, and what the nodes make.

    Attributes:
        nodes: int [8, nodes]; of each node its type, level, layer (see `ir/ranks`), how many operands it has, the first
            value that it makes, its shape, and the first and last of the inputs that go into it (see
            `batch/fingerprints`).
        operands: int [2, operands]; the values that the nodes read, node after node; and a word for the place of each
            (see `place_of`).
        shared: int; numbers of the shared values that are rows.
        outputs: int; the values that are the leaves of the sample's result.
        positions: int [inputs]; the place of each input in the order of `batch/fingerprints`.
        inputs: where each input is among the rows of the sample's leaves.
        needs: int [4, needs]; which layers need which (see `ir/ranks`).
        layers: int [2, types]; how many layers each type has; and how many without sums of one term, which are no nodes
            of a piece: so many steps it needs at least.
        sizes: int [5]; how many nodes, values, operands, inputs and shared values there are.
    """

    nodes: np.ndarray
    operands: np.ndarray
    shared: np.ndarray
    outputs: np.ndarray
    positions: np.ndarray
    inputs: InputRows
    needs: np.ndarray
    layers: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True, eq=False)
class Batch:
    """The pieces of a batch, joined; values are numbered over the whole batch.

    Attributes:
        type, level, layer: int [nodes].
        arity: int [nodes]; how many operands each has.
        operand_start, operands: node i reads `operands[operand_start[i]:operand_start[i + 1]]`.
        place: int [operands]; a word for the place of each (see `place_of`).
        first_value: int [nodes]; the first value that each node makes.
        made: int [types]; how many values a node of each type makes.
        shapes: those of the nodes.
        values: how many values there are.
        input_values, input_class: int [inputs].
        input_row: int [inputs]; which of the rows that its sample has of its class each is.
        sample_of_input: int [inputs].
        shared_values, shared_numbers: int [shared rows].
        outputs: int; of all samples, one after the other.
    """

    type: np.ndarray
    level: np.ndarray
    layer: np.ndarray
    arity: np.ndarray
    operand_start: np.ndarray
    operands: np.ndarray
    place: np.ndarray
    first_value: np.ndarray
    made: np.ndarray
    shapes: Shapes
    values: int
    input_values: np.ndarray
    input_class: np.ndarray
    input_row: np.ndarray
    sample_of_input: np.ndarray
    shared_values: np.ndarray
    shared_numbers: np.ndarray
    outputs: np.ndarray

    def merged_values(self, merged: np.ndarray, leader: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values that some nodes make, and those that the leaders make which take their places."""
        made = self.made[self.type[merged]]
        return ranges(self.first_value[merged], made), ranges(self.first_value[leader[merged]], made)

    @cached_property
    def producer(self) -> np.ndarray:
        """int [values]; the node that makes each value, -1 for inputs and shared values."""
        producer = np.full(self.values, -1)
        made = self.made[self.type]
        producer[ranges(self.first_value, made)] = np.arange(len(self.type)).repeat(made)
        return producer


def join(pieces: Sequence[Piece], made: np.ndarray) -> Batch:
    """One batch of pieces of the same types, whose nodes make so many values each."""
    sizes = np.concatenate([piece.sizes for piece in pieces])
    nodes_of, values_of, operands_of, inputs_of, shared_of = sizes.reshape(-1, 5).T
    first = values_of.cumsum() - values_of
    nodes = np.concatenate([piece.nodes for piece in pieces], axis=1)
    kind, level, layer, arity, first_value, shape, from_input, to_input = nodes
    first_value += first.repeat(nodes_of)
    first_input = inputs_of.cumsum() - inputs_of
    nodes[6:] += first_input.repeat(nodes_of)
    position = np.concatenate([piece.positions for piece in pieces])
    position += first_input.repeat(inputs_of)
    operands, place = np.concatenate([piece.operands for piece in pieces], axis=1)
    operands += first.repeat(operands_of)
    input_class, input_row = np.concatenate([piece.inputs.of_input for piece in pieces], axis=1)
    outputs = np.concatenate([piece.outputs for piece in pieces])
    outputs += first.repeat([len(piece.outputs) for piece in pieces])
    return Batch(
        type=kind,
        level=level,
        layer=layer,
        arity=arity,
        operand_start=offsets(arity),
        operands=operands,
        place=place,
        first_value=first_value,
        made=made,
        shapes=Shapes(shape, from_input, to_input, position),
        values=int(values_of.sum()),
        input_values=ranges(first, inputs_of),
        input_class=input_class,
        input_row=input_row,
        sample_of_input=np.arange(len(pieces)).repeat(inputs_of),
        shared_values=ranges(first + inputs_of, shared_of),
        shared_numbers=np.concatenate([piece.shared for piece in pieces]),
        outputs=outputs,
    )
