"""The types of a batch as integers: what a node of each kind becomes, and which types run in a loop."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.core.layout import ArenaLayout, PhaseLayout
from jitbatch.core.reference.batch import Batch
from jitbatch.core.reference.fill import Layout
from jitbatch.core.reference.input_rows import InputRows
from jitbatch.core.reference.typed_graph import TypedGraph, retype

ROW_OPERAND, SHARED_VALUE, PART_OUTPUT = 0, 1, 2
"""Where an operand of a part comes from: `(ROW_OPERAND, column, 0)`, `(SHARED_VALUE, number, 0)`, or
`(PART_OUTPUT, part, output)`."""


class Type(NamedTuple):
    """How many values a node makes, how many rows it reads, whether it may read any number of them, and whether equal
    calls are one call."""

    outputs: int
    rows: int
    is_variadic: bool
    may_merge: bool


class Part(NamedTuple):
    """A node that a node becomes: its type, and where its operands come from."""

    type: int
    operands: Sequence[tuple[int, int, int]]


class Recipe(NamedTuple):
    """What nodes of a kind become: parts, and for each output of the kind the part and the output that make it."""

    parts: Sequence[Part]
    outputs: Sequence[tuple[int, int]]


class TypeTable:
    """The types of a batch, and what makes the rest of a plan of them.

    Args:
        types: the types.
        loops: the types of each loop, in the order in which they run in a round.
        recipes: what nodes become, by kind.
    """

    def __init__(self, types: Sequence[Any], loops: Sequence[Sequence[int]], recipes: Mapping[int, Any]):
        self.types = [Type(*one) for one in types]
        self.loops = [list(members) for members in loops]
        self.recipes = {
            kind: Recipe([Part(*part) for part in parts], outputs) for kind, (parts, outputs) in recipes.items()
        }
        self.loop_of: dict[int, int] = {t: loop for loop, members in enumerate(loops) for t in members}
        self.place_of = {t: place for members in loops for place, t in enumerate(members)}

    def graph(
        self, kind: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, shared_rows: np.ndarray,
        outputs: np.ndarray, of_input: np.ndarray, class_rows: np.ndarray,
    ) -> TypedGraph:  # fmt: skip
        """A graph in terms of these types; the arguments are those of `Graph` and of its `InputRows`."""
        return retype(
            self, kind.tolist(), operand_start.tolist(), operands.tolist(), shared_rows.tolist(), outputs.tolist(),
            of_input.T.tolist(), class_rows.T.tolist(),
        )  # fmt: skip

    def batch(
        self, graphs: Sequence[TypedGraph], inputs: InputRows, shared_class: np.ndarray,
        shared_row: np.ndarray, shared_count: np.ndarray, dedupe: bool,
    ) -> Batch:  # fmt: skip
        """Graphs joined, and equal calls merged.

        Args:
            graphs: one for each sample.
            inputs: their input rows.
            shared_class, shared_row: of each shared value; -1 for those that are no rows.
            shared_count: for each value class, how many shared values come before the input rows.
            dedupe: whether equal calls and equal input rows are merged.
        """
        return Batch(self, graphs, inputs, shared_class.tolist(), shared_row.tolist(), shared_count.tolist(), dedupe)

    def inputs(self, samples: Sequence[Any], classes: Sequence[tuple[str, int, int]]) -> InputRows:
        """The input rows of samples; for each value class its kind of dtype, its itemsize, and the size of a row."""
        return InputRows(samples, classes)

    def layout(self, phases: Sequence[PhaseLayout], arenas: Sequence[ArenaLayout], size: int) -> Layout:
        """The sizes of a program whose tables have so many elements."""
        return Layout(self, phases, arenas, size)
