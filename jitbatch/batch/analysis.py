"""The analysis of a batch that no executor is needed for: types, equal calls merged, the nodes to be scheduled.

Everything here works on whole arrays, never on single nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitbatch.batch.activity import Flows, every_flow
from jitbatch.batch.dedupe import merge_calls
from jitbatch.batch.inputs import PackedInputs, pack_inputs
from jitbatch.batch.join import Batch, Piece, join
from jitbatch.batch.problem import Problem
from jitbatch.batch.retype import typed
from jitbatch.batch.types import Types
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.tables import Tables
from jitbatch.util import compat
from jitbatch.util.csr import offsets, ranges


@dataclass(frozen=True, eq=False)
class Analysis:
    """A batch, analysed.

    Attributes:
        types: the types of its nodes.
        pieces, batch: the graphs in terms of these types, one by one and joined.
        packed: its input rows.
        shared_rows: for each class the shared values that are needed as rows; in the arena the inputs come after them.
        value_row: int [values]; the rows of inputs and shared values, -1 for what nodes make.
        leader: int [nodes]; the first node that computes the same.
        nodes: int; the distinct nodes, which are their own leaders.
    """

    tables: Tables
    types: Types
    pieces: list[Piece]
    batch: Batch
    packed: PackedInputs
    shared_rows: list[tuple[int, ...]]
    value_row: np.ndarray
    leader: np.ndarray
    nodes: np.ndarray

    @cached_property
    def problem(self) -> Problem:
        """What is to be scheduled: the distinct nodes, renumbered."""
        batch, nodes = self.batch, self.nodes
        renumber = np.full(len(self.leader), -1)
        renumber[nodes] = np.arange(len(nodes))
        counts = batch.arity[nodes]
        read = batch.producer[batch.operands[ranges(batch.operand_start[nodes], counts)]]
        inner = read >= 0
        return Problem(
            type=batch.type[nodes],
            level=batch.level[nodes],
            reader=np.arange(len(nodes)).repeat(counts)[inner],
            read=renumber[self.leader[read[inner]]],
        )

    @property
    def flows(self) -> Flows:
        """Through which row operands of each type a derivative can pass. Inputs of an outer transformation may have
        one themselves."""
        is_traced = any(map(compat.is_tracer, self.packed.rows.values()))
        return every_flow(self.types.kinds) if is_traced else self.types.flows

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
        values, of_leaders = self.batch.merged_values(merged, self.leader)
        value_row[values] = value_row[of_leaders]

    def operand_rows(self, nodes: np.ndarray, value_row: np.ndarray, count: int) -> np.ndarray:
        """int [operands, nodes]; where the operands of some nodes lie, which read `count` values each."""
        columns = self.batch.operand_start[nodes] + np.arange(count)[:, None]
        return value_row[self.batch.operands[columns]]

    def terms(self, nodes: np.ndarray, value_row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of nodes that read any number of values: int [terms], where these lie, and int [nodes], how many each has."""
        counts = self.batch.arity[nodes]
        return value_row[self.batch.operands[ranges(self.batch.operand_start[nodes], counts)]], counts


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
    pieces = typed(graphs, types)
    batch = join(pieces, types.made)
    shared_rows, shared_position = _shared_rows(batch, tables, shared)
    packed = pack_inputs(pieces, inputs, batch, tables, dedupe)

    value_row = np.full(batch.values, -1, np.int64)
    value_row[batch.shared_values] = shared_position[batch.shared_numbers]
    shared_count = np.array([len(rows) for rows in shared_rows])
    value_row[batch.input_values] = packed.row + shared_count[batch.input_class]

    leader = nodes = np.arange(len(batch.type))
    if dedupe:
        # A number for every value, equal for inputs and shared values in the same row.
        class_start = offsets(shared_count + packed.counts)
        value_key = class_start[-1] + np.arange(batch.values)
        value_key[batch.input_values] = class_start[batch.input_class] + value_row[batch.input_values]
        shared_class = np.array(tables.shared_class, np.int64)[batch.shared_numbers]
        value_key[batch.shared_values] = class_start[shared_class] + value_row[batch.shared_values]
        may_merge = np.array([kind.cell.may_merge for kind in types.kinds], bool)
        leader = merge_calls(batch, may_merge, value_key)
        nodes = np.flatnonzero(leader == nodes)
    return Analysis(tables, types, pieces, batch, packed, shared_rows, value_row, leader, nodes)


def _shared_rows(batch: Batch, tables: Tables, further: Iterable[int]) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """For each class the shared values that are needed as rows, and the row of each shared value."""
    rows: list[tuple[int, ...]] = [()] * len(tables.classes)
    position = np.full(len(tables.shared), -1, np.int64)
    for number in sorted({*batch.shared_numbers.tolist(), *further}, key=tables.shared_order):
        in_class = tables.shared_class[number]
        position[number] = len(rows[in_class])
        rows[in_class] += (number,)
    return rows, position
