"""The types of a batch as integers: the recipe of each kind of node, and the types of each loop."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.core.layout import ArenaLayout, PhaseLayout
from jitbatch.core.reference.batch import Batch
from jitbatch.core.reference.fill import Layout
from jitbatch.core.reference.input_rows import InputRows
from jitbatch.core.reference.typed_graph import TypedGraph, retype

ROW_OPERAND, SHARED_VALUE, PART_OUTPUT = 0, 1, 2
"""The source of an operand of a part: `(ROW_OPERAND, column, 0)`, `(SHARED_VALUE, id, 0)`, or
`(PART_OUTPUT, part, output)`."""


class Type(NamedTuple):
    """A type: the number of outputs of a node, the number of its row operands, whether it is variadic (reads any number
    of rows), and whether equal calls may be merged."""

    outputs: int
    rows: int
    is_variadic: bool
    may_merge: bool


class Part(NamedTuple):
    """One of the typed nodes that replace a node: its type, and the source of each operand."""

    type: int
    operands: Sequence[tuple[int, int, int]]


class Recipe(NamedTuple):
    """The parts that replace a node of a kind, and for each output of the kind its part and the output of that part."""

    parts: Sequence[Part]
    outputs: Sequence[tuple[int, int]]


class TypeTable:
    """The types of a batch, with methods that make the other objects of a plan from them.

    Args:
        types: the fields of the `Type` of each type.
        loops: the types of each loop, in the order in which they run in a round.
        recipes: the fields of the `Recipe` of each kind.
    """

    def __init__(self, types: Sequence[Any], loops: Sequence[Sequence[int]], recipes: Mapping[int, Any]):
        self.types = [Type(*entry) for entry in types]
        self.loops = [list(members) for members in loops]
        self.recipes = {
            kind: Recipe([Part(*part) for part in parts], outputs) for kind, (parts, outputs) in recipes.items()
        }
        self.loop_of: dict[int, int] = {t: loop for loop, members in enumerate(loops) for t in members}

    def graph(
        self, kind: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, shared_rows: np.ndarray,
        outputs: np.ndarray, of_input: np.ndarray, class_rows: np.ndarray,
    ) -> TypedGraph:  # fmt: skip
        """Retype a graph: express it in these types. The arguments are fields of `Graph` and of its `InputRows`."""
        return retype(
            self, kind.tolist(), operand_start.tolist(), operands.tolist(), shared_rows.tolist(), outputs.tolist(),
            of_input.T.tolist(), class_rows.T.tolist(),
        )  # fmt: skip

    def batch(
        self, graphs: Sequence[TypedGraph], inputs: InputRows, shared_class: np.ndarray,
        shared_row: np.ndarray, shared_count: np.ndarray, dedupe: bool,
    ) -> Batch:  # fmt: skip
        """Join graphs into a batch.

        Args:
            graphs: one for each sample.
            inputs: the input rows of the samples.
            shared_class, shared_row: the value class of each shared value, and its row; -1 if it needs no row.
            shared_count: for each value class, the number of shared values, which come before the input rows.
            dedupe: whether to merge equal calls and equal input rows.
        """
        return Batch(self, graphs, inputs, shared_class.tolist(), shared_row.tolist(), shared_count.tolist(), dedupe)

    def inputs(self, samples: Sequence[Any], classes: Sequence[tuple[str, int, int]]) -> InputRows:
        """The input rows of samples. The arguments are those of `InputRows`."""
        return InputRows(samples, classes)

    def layout(self, phases: Sequence[PhaseLayout], arenas: Sequence[ArenaLayout], size: int) -> Layout:
        """The layout of a program, whose tables have `size` elements in all."""
        return Layout(self, phases, arenas, size)
