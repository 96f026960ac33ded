"""The analysis of a batch that no executor is needed for: types, equal calls merged, the nodes to be scheduled.

Everything here works on whole arrays, never on single nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitbatch._concat import Batch, concatenate, ranges
from jitbatch._dedupe import merge_calls
from jitbatch._graph import Graph, Tables
from jitbatch._inputs import PackedInputs, pack_inputs
from jitbatch._schedule import Problem
from jitbatch._types import Types, typed


@dataclass(frozen=True, eq=False)
class Analysis:
    """A batch, analysed.

    Attributes:
        types: the types of its nodes.
        batch: the concatenated graphs, in terms of these types.
        packed: its input rows.
        shared_rows: for each class the shared values that are needed as rows; in the arena the inputs come after them.
        value_row: int [values]; the rows of inputs and shared values, -1 for what nodes make.
        leader: int [nodes]; the first node that computes the same.
        nodes: int; the distinct nodes, which are their own leaders.
        problem: what is to be scheduled: those nodes, renumbered.
    """

    tables: Tables
    types: Types
    batch: Batch
    packed: PackedInputs
    shared_rows: list[tuple[int, ...]]
    value_row: np.ndarray
    leader: np.ndarray
    nodes: np.ndarray
    problem: Problem

    @property
    def first_free_row(self) -> np.ndarray:
        """int [classes]; where the rows of nodes can begin."""
        return np.array([len(rows) for rows in self.shared_rows]) + self.packed.counts

    def place(self, value_row: np.ndarray, nodes: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Enter the rows of what some nodes of one type make: `rows` has an array for each output of the type."""
        first = self.batch.first_value[nodes]
        for output, here in enumerate(rows):
            value_row[first + output] = here

    def place_merged(self, value_row: np.ndarray) -> None:
        """Enter the rows of merged values: they lie where their leaders' do."""
        values = np.flatnonzero(self.batch.producer >= 0)
        made_by = self.batch.producer[values]
        merged = self.leader[made_by] != made_by
        values, made_by = values[merged], made_by[merged]
        first = self.batch.first_value
        value_row[values] = value_row[first[self.leader[made_by]] + values - first[made_by]]

    def operand_rows(self, nodes: np.ndarray, value_row: np.ndarray, count: int) -> np.ndarray:
        """int [operands, nodes]; where the operands of some nodes lie, which read `count` values each."""
        columns = self.batch.operand_start[nodes] + np.arange(count)[:, None]
        return value_row[self.batch.operands[columns]]

    def terms(self, nodes: np.ndarray, value_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of nodes that read any number of values: int [terms], where these lie, and int [nodes], how many each has."""
        counts = self.batch.operand_start[nodes + 1] - self.batch.operand_start[nodes]
        return value_row[self.batch.operands[ranges(self.batch.operand_start[nodes], counts)]], counts


def analyse(
    graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], types: Types, dedupe: bool, shared: Iterable[int] = ()
) -> Analysis:
    """Analyse a batch of at least one sample.

    Args:
        graphs: one for each sample.
        leaves: the array leaves of each sample.
        types: the types of the batch.
        dedupe: whether equal calls are merged.
        shared: further shared values that are to be rows.
    """
    tables = graphs[0].tables
    graphs = [typed(graph, types) for graph in graphs]
    batch = concatenate(graphs)
    shared_rows, shared_position = _shared_rows(batch, tables, shared)
    packed = pack_inputs(graphs, leaves, batch, tables, dedupe)

    value_row = np.full(len(batch.value_class), -1, np.int64)
    value_row[batch.shared_values] = shared_position[batch.shared_numbers]
    shared_count = np.array([len(rows) for rows in shared_rows])
    value_row[batch.input_values] = packed.row + shared_count[batch.value_class[batch.input_values]]

    leader = np.arange(len(batch.kind))
    if dedupe:
        # A number for every value, equal for inputs and shared values in the same row.
        value_key = value_row * len(tables.classes) + batch.value_class
        is_computed = batch.producer >= 0
        value_key[is_computed] = value_key.max(initial=0) + 1 + np.arange(is_computed.sum())
        leader = merge_calls(
            batch.kind, batch.level, batch.operand_start, batch.operands, batch.first_value,
            np.array([len(made) for made in tables.kind_classes]),
            np.array([kind.cell.may_merge for kind in tables.kinds.entries], bool),
            value_key,
        )  # fmt: skip

    nodes = np.flatnonzero(leader == np.arange(len(leader)))
    renumber = np.full(len(leader), -1)
    renumber[nodes] = np.arange(len(nodes))
    counts = np.diff(batch.operand_start)[nodes]
    read = batch.producer[batch.operands[ranges(batch.operand_start[nodes], counts)]]
    inner = read >= 0
    problem = Problem(
        type=types.of_kind[batch.kind[nodes]],
        level=batch.level[nodes],
        reader=np.repeat(np.arange(len(nodes)), counts)[inner],
        read=renumber[leader[read[inner]]],
    )
    return Analysis(tables, types, batch, packed, shared_rows, value_row, leader, nodes, problem)


def _shared_rows(batch: Batch, tables: Tables, further: Iterable[int]) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """For each class the shared values that are needed as rows, and the row of each shared value."""
    rows: list[tuple[int, ...]] = [()] * len(tables.classes)
    position = np.full(len(tables.shared), -1, np.int64)
    for number in sorted({*np.unique(batch.shared_numbers).tolist(), *further}, key=tables.shared_order):
        in_class = tables.shared_class[number]
        position[number] = len(rows[in_class])
        rows[in_class] += (number,)
    return rows, position
