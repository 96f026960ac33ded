"""The analysis of a batch that no executor is needed for: types, equal calls merged, the nodes to be scheduled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitbatch.batch.activity import Flows, every_flow
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
    """A batch, analysed.

    Attributes:
        types: the types of its nodes.
        graphs, batch: the graphs in terms of these types, one by one and joined.
        packed: its input rows.
        shared_rows: for each class the shared values that are needed as rows; in the arena the inputs come after them.
    """

    tables: Tables
    types: Types
    graphs: list[TypedGraph]
    batch: Batch
    packed: PackedInputs
    shared_rows: list[tuple[int, ...]]

    @property
    def value_row(self) -> np.ndarray:
        """int32 [values]; the rows of inputs and shared values, -1 for what nodes make."""
        return self.batch.value_row

    @property
    def leader(self) -> np.ndarray:
        """int32 [nodes]; the first node that computes the same."""
        return self.batch.leader

    @property
    def nodes(self) -> np.ndarray:
        """int32; the distinct nodes, which are their own leaders."""
        return self.batch.nodes

    @cached_property
    def problem(self) -> Problem:
        """What is to be scheduled: the distinct nodes, renumbered."""
        return problem_of(self.batch)

    @property
    def flows(self) -> Flows:
        """Through which row operands of each type a derivative can pass. Inputs of an outer transformation may have
        one themselves."""
        return every_flow(self.types.kinds) if self.packed.is_traced else self.types.flows

    @property
    def first_free_row(self) -> np.ndarray:
        """int [classes]; where the rows of nodes can begin."""
        return np.array([len(rows) for rows in self.shared_rows]) + self.packed.counts

    def place(self, value_row: np.ndarray, nodes: np.ndarray, starts: Sequence[int]) -> None:
        """Enter the rows of what some nodes of one type make: those of each output begin at one of `starts`."""
        first = self.batch.first_value[nodes]
        for output, start in enumerate(starts):
            value_row[first + output] = np.arange(start, start + len(nodes))

    def place_merged(self, value_row: np.ndarray) -> None:
        """Enter the rows of merged values: they lie where their leaders' do."""
        merged = np.flatnonzero(self.leader != np.arange(len(self.leader)))
        made = self.types.made[self.batch.type[merged]]
        first, of_leaders = self.batch.first_value[merged], self.batch.first_value[self.leader[merged]]
        value_row[ranges(first, made)] = value_row[ranges(of_leaders, made)]

    def operand_rows(self, nodes: np.ndarray, value_row: np.ndarray, count: int) -> np.ndarray:
        """int [operands, nodes]; where the operands of some nodes lie, which read `count` values each."""
        columns = self.batch.operand_start[nodes] + np.arange(count)[:, None]
        return value_row[self.batch.operands[columns]]

    def terms(self, nodes: np.ndarray, value_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of nodes that read any number of values: int [terms], where these lie, and int [nodes], how many each has."""
        start = self.batch.operand_start
        counts = start[nodes + 1] - start[nodes]
        return value_row[self.batch.operands[ranges(start[nodes], counts)]], counts


def analyse(
    graphs: Sequence[Graph], inputs: Sequence[Inputs], types: Types, dedupe: bool, shared: Iterable[int] = ()
) -> Analysis:
    """Analyse a batch of at least one sample.

    Args:
        graphs: one for each sample.
        inputs: the leaves of each sample that are rows.
        types: the types of the batch.
        dedupe: whether equal calls are merged.
        shared: further shared values that are to be rows.
    """
    tables = graphs[0].tables
    typed_graphs = typed(graphs, types)
    packed = pack_inputs(inputs, types, tables)
    shared_rows = _shared_rows({*shared}.union(*(graph.shared for graph in typed_graphs)), tables, packed.classes)
    positions = shared_positions({c: rows for c, rows in enumerate(shared_rows) if rows}, tables, packed.classes)
    batch = types.table.batch(typed_graphs, packed.read, *positions, dedupe)
    return Analysis(tables, types, typed_graphs, batch, packed, shared_rows)


class SharedRows(NamedTuple):
    """The shared values that are rows, as the core reads them.

    Attributes:
        value_class, row: int32 [shared values]; the class of each, and its row, -1 for those that are no rows.
        counts: int32 [classes]; how many of each class there are.
    """

    value_class: np.ndarray
    row: np.ndarray
    counts: np.ndarray


def shared_positions(rows: Mapping[int, Sequence[int]], tables: Tables, classes: int) -> SharedRows:
    """The positions of shared values, given those that are rows for some of so many classes."""
    value_class = np.array(tables.shared_class, np.int32)
    row = np.full(len(value_class), -1, np.int32)
    counts = np.zeros(classes, np.int32)
    for number, own in rows.items():
        row[list(own)] = range(len(own))
        counts[number] = len(own)
    return SharedRows(value_class, row, counts)


def _shared_rows(numbers: set[int], tables: Tables, classes: int) -> list[tuple[int, ...]]:
    """For each class the shared values that are needed as rows."""
    rows: list[tuple[int, ...]] = [()] * classes
    for number in sorted(numbers, key=tables.shared_order):
        rows[tables.shared_class[number]] += (number,)
    return rows
