"""The analysis of a batch, the same for every executor: types, merged calls, and the nodes to schedule."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitbatch.batch.activity import Flows
from jitbatch.batch.inputs import PackedInputs, pack_inputs
from jitbatch.batch.problem import Problem, problem_of
from jitbatch.batch.retype import typed
from jitbatch.batch.types import Types
from jitbatch.core.reference.batch import Batch
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.tables import Tables
from jitbatch.util.csr import ranges


@dataclass(frozen=True, eq=False)
class Analysis:
    """An analysed batch.

    Attributes:
        types: the types of its nodes.
        graphs, batch: the graphs expressed in these types, one for each sample, and joined.
        packed: its input rows.
        shared_rows: for each value class, the shared values that are needed as rows. Input rows follow them in the
            arena.
    """

    tables: Tables
    types: Types
    graphs: list[TypedGraph]
    batch: Batch
    packed: PackedInputs
    shared_rows: list[tuple[int, ...]]

    @property
    def value_row(self) -> np.ndarray:
        """int32 [values]; the row of each input and shared value, -1 for node outputs."""
        return self.batch.value_row

    @property
    def leader(self) -> np.ndarray:
        """int32 [nodes]; the first node with an equal call."""
        return self.batch.leader

    @property
    def nodes(self) -> np.ndarray:
        """int32; the distinct nodes: those that are their own leaders."""
        return self.batch.nodes

    @cached_property
    def problem(self) -> Problem:
        """The scheduling problem: the distinct nodes, renumbered."""
        return problem_of(self.batch)

    @property
    def flows(self) -> Flows:
        """The row operands of each type that a derivative can pass through."""
        return self.types.flows_from(self.packed.active) if self.packed.active else self.types.flows

    @property
    def first_free_row(self) -> np.ndarray:
        """int [classes]; the first row of each arena after shared values and inputs, free for node outputs."""
        return np.array([len(rows) for rows in self.shared_rows]) + self.packed.counts

    def place(self, value_row: np.ndarray, nodes: np.ndarray, starts: Sequence[int]) -> None:
        """Set the rows of the outputs of some nodes of one type.

        Args:
            value_row: the row of each value; changed in place.
            nodes: the nodes.
            starts: the first row of each output. The nodes take consecutive rows.
        """
        first = self.batch.first_value[nodes]
        for output, start in enumerate(starts):
            value_row[first + output] = np.arange(start, start + len(nodes))

    def place_merged(self, value_row: np.ndarray) -> None:
        """Set the rows of the outputs of merged nodes in `value_row`: they are those of their leaders."""
        merged = np.flatnonzero(self.leader != np.arange(len(self.leader)))
        made = self.types.made[self.batch.type[merged]]
        first, of_leaders = self.batch.first_value[merged], self.batch.first_value[self.leader[merged]]
        value_row[ranges(first, made)] = value_row[ranges(of_leaders, made)]

    def operand_rows(self, nodes: np.ndarray, value_row: np.ndarray, count: int) -> np.ndarray:
        """int [operands, nodes]; the operand rows of nodes that read `count` values each."""
        columns = self.batch.operand_start[nodes] + np.arange(count)[:, None]
        return value_row[self.batch.operands[columns]]

    def terms(self, nodes: np.ndarray, value_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For variadic nodes: int [terms], the row of each term, and int [nodes], the number of terms of each node."""
        start = self.batch.operand_start
        counts = start[nodes + 1] - start[nodes]
        return value_row[self.batch.operands[ranges(start[nodes], counts)]], counts


def analyse(
    graphs: Sequence[Graph], inputs: Sequence[Inputs], types: Types, dedupe: bool, shared: Iterable[int] = (),
    differentiable: Collection[int] = (),
) -> Analysis:  # fmt: skip
    """Analyse a batch of at least one sample.

    Args:
        graphs: one for each sample.
        inputs: the used leaves of each sample.
        types: the types of the batch.
        dedupe: whether to merge equal calls.
        shared: additional shared values that are needed as rows.
        differentiable: the value classes with differentiated inputs.
    """
    tables = graphs[0].tables
    typed_graphs = typed(graphs, types)
    packed = pack_inputs(inputs, types, tables, differentiable)
    shared_rows = _shared_rows({*shared}.union(*(graph.shared for graph in typed_graphs)), tables, packed.classes)
    positions = shared_positions({c: rows for c, rows in enumerate(shared_rows) if rows}, tables, packed.classes)
    batch = types.table.batch(typed_graphs, packed.read, *positions, dedupe)
    return Analysis(tables, types, typed_graphs, batch, packed, shared_rows)


class SharedRows(NamedTuple):
    """The shared values that are rows, as arrays for the core.

    Attributes:
        value_class, row: int32 [shared values]; the value class of each shared value, and its row, -1 if it has none.
        counts: int32 [classes]; the number of shared values with a row in each value class.
    """

    value_class: np.ndarray
    row: np.ndarray
    counts: np.ndarray


def shared_positions(rows: Mapping[int, Sequence[int]], tables: Tables, classes: int) -> SharedRows:
    """The `SharedRows` of a batch.

    Args:
        rows: for some value classes, the shared values that are rows.
        tables: the tables of the batch.
        classes: the number of value classes.
    """
    value_class = np.array(tables.shared_class, np.int32)
    row = np.full(len(value_class), -1, np.int32)
    counts = np.zeros(classes, np.int32)
    for class_id, own in rows.items():
        row[list(own)] = range(len(own))
        counts[class_id] = len(own)
    return SharedRows(value_class, row, counts)


def _shared_rows(shared_ids: set[int], tables: Tables, classes: int) -> list[tuple[int, ...]]:
    """The shared values `shared_ids` for each of `classes` value classes, each in canonical order."""
    rows: list[tuple[int, ...]] = [()] * classes
    for shared_id in sorted(shared_ids, key=tables.shared_order):
        rows[tables.shared_class[shared_id]] += (shared_id,)
    return rows
