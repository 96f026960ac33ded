"""The graph of one sample during recording, as growing lists of integers.

Every value that differs between samples has a row id. There are three ranges:

- Ids from -1 downwards: inputs of the sample, constants that are rows, and shared values that are needed as rows.
- Ids from 0 upwards: node outputs.
- Ids from `BARE` upwards: outputs of bare operations, which become nodes at the end, and the arguments of a running
  body. For an argument, `same` holds the row id of the passed value.
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
    """A node: the id of its kind, the rows that it reads, and the rows that it computes."""

    kind_id: int
    operands: Sequence[int]
    outputs: Sequence[int]


class GraphBuilder:
    """The nodes of a sample, in the order of execution, and their rows.

    Attributes:
        kinds: the kind id of each node.
        counts: the number of rows that each node reads.
        operands: the ids of these rows, node after node.
        made: the row ids of the node outputs, node after node. `close` fills it in.
        first_output: the number of row ids for node outputs at the last cut (see `record/nodes`).
        node_outputs: the number of row ids for node outputs.
        bare_outputs: the number of row ids from `BARE` upwards.
        same: from a row id (`BARE` or larger) to an earlier row id of the same value.
        given: for each row id from -1 downwards, a leaf, the number of its indexed axes, and the row along these axes;
            or -1 and the id of a shared value.
        given_class: the value class of each of these rows.
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
    )  # the compiled core fills these slots

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
        """The id of a new input row, constant row or shared row."""
        self.given.append((leaf, depth, row))
        self.given_class.append(class_id)
        return -len(self.given)

    def bare_row(self) -> int:
        """A new row id for the output of a bare operation."""
        self.bare_outputs += 1
        return BARE + self.bare_outputs - 1

    def origin(self, row: int) -> int:
        """The first row id of the value of a row."""
        while row in self.same:
            row = self.same[row]
        return row

    def constant_row(self, value: Any) -> int:
        """The row id of a constant. The constant is handled like a leaf of the sample."""
        aval = compat.typeof(value)
        array = value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)
        key = "constant", array_key(array)
        if key not in self._given_rows:
            self._given_rows[key] = self.give(len(self.leaf_avals), 0, 0, self.tables.class_of(aval))
            self.leaf_avals.append(aval)
            self.constants.append(array)
        return self._given_rows[key]

    def shared_row(self, shared_id: int) -> int:
        """The row id of a shared value."""
        key = SharedRow(shared_id)
        if key not in self._given_rows:
            self._given_rows[key] = self.give(-1, shared_id, 0, self.tables.shared_class[shared_id])
        return self._given_rows[key]

    # Nodes, after the function has returned or asked for values

    def close(self) -> None:
        """Fill in the output rows of the nodes. No call is recorded after this."""
        self.made = range(self.first_output, self.node_outputs)

    def reopen(self) -> None:
        """Start with an empty list of nodes, after a cut. Row ids continue."""
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
