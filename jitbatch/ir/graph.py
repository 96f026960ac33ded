"""The graph of one recorded sample.

A `Graph` is a struct of small integer arrays. These are ids in the `Tables` of the recorded function, which hold
everything that is not an integer.
"""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from jitbatch.ir.input_rows import InputRows
from jitbatch.ir.items import Items, split_items
from jitbatch.ir.ranks import find_ranks
from jitbatch.ir.tables import ROW, Tables
from jitbatch.util.errors import VerifyError


@dataclass(frozen=True, eq=False)
class Graph:
    """The computation of one sample.

    Nodes are in topological order. The ids of values count the inputs first, then the shared values that are needed as
    rows, then the node outputs in the order of the nodes.

    Attributes:
        tables: the tables that the ids below refer to.
        leaf_shapes: the shapes of the sample's array leaves, then those of the constants.
        constants: small arrays in the sample's code that are rows. They follow the leaves.
        inputs: int32 [inputs, 3]; for each input its leaf, the number of indexed leading axes of the leaf, and the flat
            index into these axes. `(3, 0, 0)` is the whole leaf 3, `(3, 1, 5)` its row 5.
        shared_rows: int32 [shared rows]; ids of shared values.
        kind: int32 [nodes]; the kind of each node.
        operand_start: int32 [nodes + 1]; node i reads `operands[operand_start[i]:operand_start[i + 1]]`.
        operands: int32; values, one for each `ROW` in the binding of the node's kind; any number for a variadic kind.
        value_class: int32 [values]; the class of each value.
        outputs: int32; the values that are the leaves of the sample's result.
        out_tree: the tree of the result.
        level: int32 [nodes]; 0 for a node that reads no other node, else one more than the highest level that it reads.
        node_values: int32 [nodes + 1]; the outputs of node i are values `node_values[i]` up to `node_values[i + 1]`,
            exclusive.
        kinds_present, edges_present: the distinct ids of the nodes' kinds, and of the edges between them, ascending.
        input_rows: the leaves of a sample that are used, and the positions of the inputs among their rows.
        structure: the structure of the recorded sample (see `record/structure`).
        typed: a cache of this graph, expressed in the types of batches (see `batch/retype`).
    """

    tables: Tables = field(repr=False)
    leaf_shapes: tuple[tuple[int, ...], ...]
    constants: tuple[Any, ...]
    inputs: np.ndarray
    shared_rows: np.ndarray
    kind: np.ndarray
    operand_start: np.ndarray
    operands: np.ndarray
    value_class: np.ndarray
    outputs: np.ndarray
    out_tree: Any
    level: np.ndarray
    node_values: np.ndarray
    kinds_present: np.ndarray
    edges_present: np.ndarray
    input_rows: InputRows
    structure: Any = field(default=None, repr=False)
    typed: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def node_count(self) -> int:
        return len(self.kind)

    @property
    def first_node_value(self) -> int:
        return int(self.node_values[0])

    @cached_property
    def producer(self) -> np.ndarray:
        """int32 [values]; the node that computes each value, -1 for inputs and shared values."""
        nodes = np.repeat(np.arange(self.node_count, dtype=np.int32), np.diff(self.node_values))
        return np.concatenate([np.full(self.first_node_value, -1, np.int32), nodes])

    @cached_property
    def kind_sizes(self) -> np.ndarray:
        """int [2, kinds present]; the number of nodes of each kind, and its number of ranks (see `ir/ranks`)."""
        present, kind_index, counts = np.unique(self.kind, return_inverse=True, return_counts=True)
        read = self.producer[self.operands]
        reader = np.repeat(np.arange(self.node_count), np.diff(self.operand_start))
        rank = find_ranks(kind_index, self.level, reader[read >= 0], read[read >= 0])
        ranks = np.zeros(len(present), np.int64)
        np.maximum.at(ranks, kind_index, rank + 1)
        return np.stack([counts, ranks])

    @cached_property
    def out_classes(self) -> tuple[int, ...]:
        return tuple(int(c) for c in self.value_class[self.outputs])

    @cached_property
    def items(self) -> Items:
        return split_items(self.out_tree, self.out_classes)

    def verify(self) -> None:
        """Check every invariant above. A `VerifyError` names the broken one."""

        def check(holds: Any, law: str) -> None:
            if not holds:
                raise VerifyError(f"graph: {law}")

        tables, nodes = self.tables, self.node_count
        check(self.inputs.shape == (len(self.inputs), 3), "inputs has three columns")
        check(len(self.operand_start) == nodes + 1, "one entry a node")
        check(self.operand_start[0] == 0 and self.operand_start[-1] == len(self.operands), "operands are covered")
        check(np.all((self.kind >= 0) & (self.kind < len(tables.kinds))), "kinds exist")
        inputs = len(self.inputs) + len(self.shared_rows)
        outputs = [len(tables.kind_classes[kind]) for kind in self.kind]
        check(
            self.node_values.tolist() == list(itertools.accumulate(outputs, initial=inputs)),
            "values are those of nodes",
        )
        check(len(self.value_class) == self.node_values[-1], "every value has a class")
        check(np.all((self.shared_rows >= 0) & (self.shared_rows < len(tables.shared))), "shared rows exist")
        check(np.all((self.outputs >= 0) & (self.outputs < len(self.value_class))), "outputs are values")
        check(self.out_tree.num_leaves == len(self.outputs), "one output a leaf of the result")
        check(self.kinds_present.tolist() == sorted(set(self.kind.tolist())), "the kinds of its nodes are present")
        edges: set[tuple[int, ...]] = set()
        for node in range(nodes):
            kind = tables.kinds[self.kind[node]]
            reads = self.operands[self.operand_start[node] : self.operand_start[node + 1]]
            fits = len(reads) > 0 if kind.is_variadic else len(reads) == kind.rows
            check(fits, f"node {node} has an operand for each row of its kind")
            check(np.all((reads >= 0) & (reads < self.node_values[node])), f"node {node} reads only earlier values")
            slots = [slot for slot, bound in enumerate(kind.binding) if bound == ROW]
            wanted = [tables.class_of(kind.cell.in_avals[slot]) for slot in slots]
            wanted *= len(reads) if kind.is_variadic else 1
            check(list(self.value_class[reads]) == wanted, f"node {node} reads values of the right classes")
            classes = self.value_class[self.node_values[node] : self.node_values[node + 1]]
            check(tuple(classes) == tables.kind_classes[self.kind[node]], f"node {node} makes the values of its kind")
            makers = self.producer[reads].tolist()
            above = max([int(self.level[by]) + 1 for by in makers if by >= 0], default=0)
            check(self.level[node] == above, f"node {node} is one level above what it reads")
            for column, (value, by) in enumerate(zip(reads.tolist(), makers, strict=True)):
                if by >= 0:
                    slot = slots[0 if kind.is_variadic else column]
                    edges.add((int(self.kind[by]), value - int(self.node_values[by]), int(self.kind[node]), slot))
        present = self.edges_present.tolist()
        check(present == sorted(set(present)), "edges are present once, ascending")
        check({tuple(tables.edges[edge_id]) for edge_id in present} == edges, "the edges between its nodes are present")

    def __str__(self) -> str:
        def name(value: int) -> str:
            if value < len(self.inputs):
                leaf, depth, row = self.inputs[value]
                return f"in{leaf}" if depth == 0 else f"in{leaf}[{row}]"
            if value < self.first_node_value:
                return f"shared{self.shared_rows[value - len(self.inputs)]}"
            return f"v{value}"

        lines = []
        for node in range(self.node_count):
            kind = self.tables.kinds[self.kind[node]]
            reads = iter(self.operands[self.operand_start[node] : self.operand_start[node + 1]])
            args = [name(next(reads)) if bound == ROW else f"shared{bound}" for bound in kind.binding]
            args += map(name, reads)
            outs = range(self.node_values[node], self.node_values[node + 1])
            outputs = ", ".join(f"v{v}:{self.tables.classes[self.value_class[v]]}" for v in outs)
            lines.append(f"  {outputs} = {kind.cell.name}({', '.join(args)})  # level {self.level[node]}")
        result = ", ".join(name(value) for value in self.outputs)
        return "\n".join([f"graph of {self.node_count} nodes", *lines, f"  return {result}"])
