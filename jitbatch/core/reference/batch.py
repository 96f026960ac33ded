"""The graphs of a batch joined into one, with equal calls merged."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jitbatch.core.reference.input_rows import InputRows
from jitbatch.core.reference.schedule import Schedule
from jitbatch.core.reference.typed_graph import TypedGraph


class Batch:
    """The joined typed graphs of a batch. Node ids and value ids count over the whole batch (see `TypeTable.batch`).

    Attributes:
        type, level, rank: int32 [nodes].
        operand_start, operands: node i reads the values `operands[operand_start[i]:operand_start[i + 1]]`.
        first_value: int32 [nodes]; the first output of each node.
        leader: int32 [nodes]; the first node with an equal call: equal type and operands. Often the node itself.
        nodes: int32; the distinct nodes: those that are their own leaders.
        outputs: int32; the values in the results of all samples.
        values: the number of values.
        value_row: int32 [values]; the row of each input and shared value, -1 for node outputs.
        given_class: int32 [values]; the value class of each input and shared value, -1 for node outputs.
    """

    def __init__(
        self, table: Any, graphs: Sequence[TypedGraph], inputs: InputRows, shared_class: list[int],
        shared_row: list[int], shared_count: list[int], dedupe: bool,
    ):  # fmt: skip
        if any(graph.table is not table for graph in graphs):
            raise ValueError("a typed graph is of other types than the batch")
        self.table, self.graphs = table, graphs
        row_of_input = _input_rows(graphs, inputs, len(shared_count), dedupe)
        types, levels, ranks, operands, first_values = [], [], [], [], []
        operand_start, leaders, outputs = [0], [], []
        rows: list[int] = []
        classes: list[int] = []
        # One number for each value; equal values have equal numbers. That of an input or shared value, from 0 upwards,
        # stands for its class and row. That of a node output is negative, and stands for the output of the leader.
        identity: list[int] = []
        known: dict[tuple[int, int], int] = {}
        calls: dict[Any, int] = {}
        for graph, input_row in zip(graphs, row_of_input, strict=True):
            first = len(identity)
            for (value_class, _), row in zip(graph.inputs, input_row, strict=True):
                rows.append(shared_count[value_class] + row)
                classes.append(value_class)
                identity.append(known.setdefault((value_class, rows[-1]), len(known)))
            for shared_id in graph.shared:
                rows.append(shared_row[shared_id])
                classes.append(shared_class[shared_id])
                identity.append(known.setdefault((classes[-1], rows[-1]), len(known)))
            for node in graph.nodes:
                node_type = table.types[node.type]
                call = node.type, *(identity[first + value] for value in node.operands)
                leader = calls.setdefault(call, len(types)) if dedupe and node_type.may_merge else len(types)
                first_values.append(len(identity))
                identity += [-1 - first_values[leader] - output for output in range(node_type.outputs)]
                types.append(node.type)
                levels.append(node.level)
                ranks.append(node.rank)
                leaders.append(leader)
                operands += [first + value for value in node.operands]
                operand_start.append(len(operands))
                rows += [-1] * node_type.outputs
                classes += [-1] * node_type.outputs
            outputs += [first + value for value in graph.outputs]
        self.values = len(identity)
        self.type, self.level, self.rank = map(_array, (types, levels, ranks))
        self.operand_start, self.operands, self.first_value = map(_array, (operand_start, operands, first_values))
        self.leader, self.outputs = _array(leaders), _array(outputs)
        self.nodes = _array([node for node, leader in enumerate(leaders) if leader == node])
        self.value_row, self.given_class = _array(rows), _array(classes)

    @cached_property
    def producer(self) -> np.ndarray:
        """int32 [values]; the node that computes each value, -1 for inputs and shared values."""
        producer = [-1] * self.values
        for node, (type_id, first) in enumerate(zip(self.type.tolist(), self.first_value.tolist(), strict=True)):
            for output in range(self.table.types[type_id].outputs):
                producer[first + output] = node
        return _array(producer)

    @property
    def node_count(self) -> int:
        return len(self.type)

    @property
    def distinct_count(self) -> int:
        return len(self.nodes)

    @property
    def levels(self) -> int:
        """The number of nodes on the longest path."""
        return int(self.level.max(initial=-1)) + 1

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges between distinct nodes: int32 [edges] `reader` and `read`, as indices into `nodes`."""
        position_of = {node: position for position, node in enumerate(self.nodes.tolist())}
        reader, read = [], []
        for position, node in enumerate(self.nodes.tolist()):
            for value in self.operands[self.operand_start[node] : self.operand_start[node + 1]].tolist():
                maker = int(self.producer[value])
                if maker >= 0:
                    reader.append(position)
                    read.append(position_of[int(self.leader[maker])])
        return _array(reader), _array(read)

    def schedule(self) -> Schedule:
        """A new schedule of the distinct nodes, with all rounds 0."""
        return Schedule(self)


def _input_rows(graphs: Sequence[TypedGraph], inputs: InputRows, classes: int, dedupe: bool) -> list[list[int]]:
    """For each sample, the distinct row of each of its inputs, as an index within the input rows of its class."""
    starts, total = [], [0] * classes
    for graph in graphs:
        starts.append(total.copy())
        for value_class, rows in graph.class_rows:
            total[value_class] += rows
    which = [inputs.merge(value_class, rows, dedupe) for value_class, rows in enumerate(total)]
    return [
        [which[value_class][start[value_class] + row] for value_class, row in graph.inputs]
        for graph, start in zip(graphs, starts, strict=True)
    ]


def _array(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int32)
