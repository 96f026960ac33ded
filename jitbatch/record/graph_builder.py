"""The graph of one sample while it is recorded: lists of integers that grow.

Every value that differs from sample to sample has a row id. What is given (inputs of the sample, constants that are
rows, shared values that are needed as rows) has ids from -1 downwards. Outputs of nodes have ids from 0 upwards.
Outputs of bare operations, of which nodes are made at the end, have ids from `BARE` upwards. So have the arguments of a
body that runs; `same` maps each of these to the row id of the value that was passed.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.ir.cell import array_key
from jitbatch.ir.tables import Tables
from jitbatch.util import compat

BARE = 1 << 40
"""The first row id for outputs of bare operations."""


class SharedRow(NamedTuple):
    """A shared value that is needed as a row."""

    shared_id: int


class Node(NamedTuple):
    """A node: the id of its kind, and the row ids that it reads and makes."""

    kind_id: int
    operands: Sequence[int]
    outputs: Sequence[int]


class GraphBuilder:
    """The nodes of a sample, in the order of execution, and the rows that they read and make.

    Attributes:
        kinds: the kind id of each node.
        counts: how many rows each node reads.
        operands: the ids of these rows, node after node.
        made: the ids of the rows that the nodes make, node after node. Filled in by `close`.
        first_output: how many row ids nodes had for their outputs at the last cut (see `record/nodes`).
        node_outputs: how many row ids nodes have for their outputs.
        bare_outputs: how many row ids there are from `BARE` upwards.
        same: maps a row id from `BARE` upwards to an earlier row id of the same value.
        given: for each row id from -1 downwards a leaf, how many of its axes are indexed, and the row along them; or -1
            and the id of a shared value.
        given_class: the value class of each.
        leaf_avals: the avals of the leaves of the sample, then of the constants.
        constants: the constants that are rows.
    """

    __slots__ = (
        "__dict__",
        "bare_outputs",
        "counts",
        "kinds",
        "node_outputs",
        "operands",
    )  # slots are what the compiled core fills

    def __init__(self, tables: Tables):
        self.tables = tables
        self.kinds: list[int] = []
        self.counts: list[int] = []
        self.operands: list[int] = []
        self.made: Sequence[int] = ()
        self.first_output = 0
        self.node_outputs = 0
        self.bare_outputs = 0
        self.same: dict[int, int] = {}
        self.given: list[tuple[int, int, int]] = []
        self.given_class: list[int] = []
        self.leaf_avals: list[Any] = []
        self.constants: list[Any] = []
        self._given_rows: dict[Hashable, int] = {}

    # Rows

    def give(self, leaf: int, depth: int, row: int, class_id: int) -> int:
        """The id of a new row that is given."""
        self.given.append((leaf, depth, row))
        self.given_class.append(class_id)
        return -len(self.given)

    def bare_row(self) -> int:
        """The id of a new row that a bare operation makes."""
        self.bare_outputs += 1
        return BARE + self.bare_outputs - 1

    def origin(self, row: int) -> int:
        """The row id under which the value of a row was made."""
        while row in self.same:
            row = self.same[row]
        return row

    def constant_row(self, value: Any) -> int:
        """The id of a constant that is a row, as a leaf of the sample is."""
        aval = compat.typeof(value)
        array = value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)
        key = "constant", array_key(array)
        if key not in self._given_rows:
            self._given_rows[key] = self.give(len(self.leaf_avals), 0, 0, self.tables.class_of(aval))
            self.leaf_avals.append(aval)
            self.constants.append(array)
        return self._given_rows[key]

    def shared_row(self, shared_id: int) -> int:
        """The id of a shared value that is a row."""
        key = SharedRow(shared_id)
        if key not in self._given_rows:
            self._given_rows[key] = self.give(-1, shared_id, 0, self.tables.shared_class[shared_id])
        return self._given_rows[key]

    # Nodes, once the function has returned or asks for values

    def close(self) -> None:
        """State the rows that nodes make: no call is recorded any more."""
        self.made = range(self.first_output, self.node_outputs)

    def reopen(self) -> None:
        """Begin with no nodes again, after a cut. Row ids go on."""
        self.kinds, self.counts, self.operands, self.made = [], [], [], ()
        self.first_output = self.node_outputs

    def pop_nodes(self, first: int) -> list[Node]:
        """Remove the nodes from `first` on, and return them."""
        classes = self.tables.kind_classes
        nodes = []
        operand_end, output_end = len(self.operands), len(self.made)
        for kind_id, count in zip(reversed(self.kinds[first:]), reversed(self.counts[first:]), strict=True):
            operand_start, output_start = operand_end - count, output_end - len(classes[kind_id])
            nodes.append(
                Node(kind_id, self.operands[operand_start:operand_end], self.made[output_start:output_end])
            )  # fmt: skip
            operand_end, output_end = operand_start, output_start
        del self.kinds[first:], self.counts[first:], self.operands[operand_end:]
        self.made = list(self.made[:output_end])
        return nodes[::-1]

    def append(self, node: Node) -> None:
        """Add a node at the end."""
        self.kinds.append(node.kind_id)
        self.counts.append(len(node.operands))
        self.operands += node.operands
        self.made += node.outputs  # type: ignore[operator]

    def has_effects(self, node: Node) -> bool:
        return self.tables.kinds[node.kind_id].cell.has_effects
