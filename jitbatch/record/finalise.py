"""From recordings to graphs with compact value ids.

A recording assigns row ids as rows appear (see `record/rows`). A graph numbers its values: first the inputs and then
the shared values, each in the order of their first use, then the node outputs. Unused nodes and values are dropped.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.core import choice
from jitbatch.core.reference.numbering import Numbered
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import input_rows
from jitbatch.ir.tables import Tables


class Recording(NamedTuple):
    """The nodes of one sample, in terms of row ids.

    Attributes:
        kinds, counts: the kind of each node, and the number of rows that it reads.
        operands: the rows that nodes read, node after node.
        made: the rows that nodes compute, node after node.
        outputs: the rows that are the leaves of the result.
        numbered: the number of row ids for node outputs, and for outputs of bare operations.
        given, given_class: see `GraphBuilder`; for the rows -1, -2, ...
        leaf_shapes, constants, out_tree, structure: see `Graph`.
    """

    kinds: Sequence[int]
    counts: Sequence[int]
    operands: Sequence[int]
    made: Sequence[int]
    outputs: Sequence[int]
    numbered: tuple[int, int]
    given: Sequence[tuple[int, int, int]]
    given_class: Sequence[int]
    leaf_shapes: tuple[tuple[int, ...], ...]
    constants: tuple[Any, ...]
    out_tree: Any
    structure: Any


PARTS = (
    "inputs", "shared_rows", "kind", "operand_start", "operands", "value_class", "outputs", "level", "node_values",
    "kinds_present", "of_input", "class_rows",
)  # fmt: skip
"""The arrays of a graph, in the order of the core's output (see `Numbered`)."""


def number(recordings: Sequence[Recording], tables: Tables) -> list[Graph]:
    """The graphs of several recordings."""
    ends, dtypes = tables.ends, [value_class.dtype for value_class in tables.classes.entries]
    numbered = [
        choice.number(
            ends, one.kinds, one.counts, one.operands, one.made, one.outputs, one.given, one.given_class,
            one.leaf_shapes,
        )
        for one in recordings
    ]  # fmt: skip
    edges = {edge: tables.edge_number(*edge) for edge in sorted(set().union(*(one.edges for one in numbered)))}
    return [_graph(*both, edges, tables, dtypes) for both in zip(recordings, numbered, strict=True)]


def _graph(
    recording: Recording, numbered: Numbered, edge_numbers: dict[tuple[int, int], int], tables: Tables,
    dtypes: Sequence[Any],
) -> Graph:  # fmt: skip
    numbers, ends, edges, leaves = numbered
    part = dict(zip(PARTS, (numbers[begin:end] for begin, end in zip([0, *ends], ends, strict=False)), strict=True))
    of_input, class_rows = part.pop("of_input").reshape(2, -1), part.pop("class_rows").reshape(2, -1)
    return Graph(
        tables=tables,
        leaf_shapes=recording.leaf_shapes,
        constants=recording.constants,
        inputs=part.pop("inputs").reshape(-1, 3),
        out_tree=tables.out_trees[tables.out_trees.number(recording.out_tree)],  # equal trees are one object
        **part,
        edges_present=np.array(sorted(map(edge_numbers.__getitem__, edges)), np.int32),
        input_rows=input_rows(of_input, class_rows, leaves, dtypes, recording.constants),
        structure=recording.structure,
    )
