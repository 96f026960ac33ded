"""The analysis of a batch that no executor is needed for: types, equal calls merged, the nodes to be scheduled.

Everything here works on whole arrays; loops run over kinds and types, never over nodes.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitbatch._canonical import Cell, widest
from jitbatch._concat import Batch, concatenate, ranges
from jitbatch._dedupe import merge_calls
from jitbatch._graph import ROW, Graph, Kind, Tables
from jitbatch._inputs import PackedInputs, pack_inputs
from jitbatch._schedule import Problem


@dataclass(frozen=True, eq=False)
class Types:
    """The types of a batch in canonical order.

    A type is a kind, but for two things. Where some calls of a cell pass a shared value (a learned initial state) and
    others a value of the sample, all pass a row. Where nodes with the same body have different outputs, all have all of
    them. Either way they are one bucket.

    Attributes:
        kinds: the kind that stands for each type.
        of_kind: int [kinds in the tables]; the type of each kind, -1 for those that the batch lacks.
        outputs: for each kind of the batch, which output of its type each of its own outputs is.
    """

    kinds: list[Kind]
    of_kind: np.ndarray
    outputs: dict[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Analysis:
    """A batch, analysed.

    Attributes:
        batch: the concatenated graphs.
        types: the types of its nodes.
        packed: its input rows.
        shared_rows: for each class the shared values that are needed as rows; in the arena the inputs come after them.
        shared_position: int [shared values]; the row of each, -1 for those that are not needed as rows.
        value_row: int [values]; the rows of inputs and shared values, -1 for what nodes make.
        leader: int [nodes]; the first node that computes the same.
        nodes: int; the distinct nodes, which are their own leaders.
        problem: what is to be scheduled: those nodes, renumbered.
    """

    tables: Tables
    batch: Batch
    types: Types
    packed: PackedInputs
    shared_rows: list[tuple[int, ...]]
    shared_position: np.ndarray
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
        kind_of = self.batch.kind[nodes]
        for number in np.unique(kind_of):
            here = np.flatnonzero(kind_of == number)
            first = self.batch.first_value[nodes[here]]
            for own, output in enumerate(self.types.outputs[int(number)]):
                value_row[first + own] = rows[output][here]

    def place_merged(self, value_row: np.ndarray) -> None:
        """Enter the rows of merged values: they lie where their leaders' do."""
        values = np.flatnonzero(self.batch.producer >= 0)
        made_by = self.batch.producer[values]
        merged = self.leader[made_by] != made_by
        values, made_by = values[merged], made_by[merged]
        first = self.batch.first_value
        value_row[values] = value_row[first[self.leader[made_by]] + values - first[made_by]]

    def operand_rows(self, kind: Kind, nodes: np.ndarray, value_row: np.ndarray) -> np.ndarray:
        """int [row operands, nodes]; where the operands of some nodes of one type lie."""
        rows = np.empty((kind.rows, len(nodes)), np.int64)
        kind_of = self.batch.kind[nodes]
        for number in np.unique(kind_of):
            here = np.flatnonzero(kind_of == number)
            first = self.batch.operand_start[nodes[here]]
            column = row = 0
            for bound, own in zip(kind.binding, self.tables.kinds[number].binding, strict=True):
                if own == ROW:
                    rows[row, here] = value_row[self.batch.operands[first + column]]
                elif bound == ROW:
                    rows[row, here] = self.shared_position[own]
                column += own == ROW
                row += bound == ROW
        return rows


def analyse(
    graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], dedupe: bool,
    kinds: Iterable[int] = (), shared: Iterable[int] = (),
) -> Analysis:  # fmt: skip
    """Analyse a batch of at least one sample.

    Args:
        graphs: one for each sample.
        leaves: the array leaves of each sample.
        dedupe: whether equal calls are merged.
        kinds: further kinds that are to have types.
        shared: further shared values that are to be rows.
    """
    tables = graphs[0].tables
    batch = concatenate(graphs)
    types = find_types(np.union1d(batch.kind, np.array(list(kinds), np.int64)), tables)
    shared_rows, shared_position = _shared_rows(batch, types, tables, shared)
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
            np.array([not kind.cell.has_effects for kind in tables.kinds.entries], bool),
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
    return Analysis(
        tables, batch, types, packed, shared_rows, shared_position, value_row, leader, nodes, problem
    )  # fmt: skip


def find_types(present: np.ndarray, tables: Tables) -> Types:
    """The types that the kinds of a batch are."""
    bodies: dict[Hashable, list[Cell]] = {}
    is_row: dict[Hashable, list[bool]] = {}
    for number in present:
        kind = tables.kinds[number]
        bodies.setdefault(kind.cell.body, []).append(kind.cell)
        rows = is_row.setdefault(kind.cell.body, [False] * len(kind.binding))
        for slot, bound in enumerate(kind.binding):
            rows[slot] = rows[slot] or bound == ROW
    widened: dict[int, Kind] = {}
    outputs: dict[int, tuple[int, ...]] = {}
    for number in present.tolist():
        kind = tables.kinds[number]
        cell = widest(bodies[kind.cell.body])
        binding = (ROW if row else bound for bound, row in zip(kind.binding, is_row[kind.cell.body], strict=True))
        widened[number] = Kind(cell, tuple(binding))
        outputs[number] = tuple(cell.output_numbers.index(out) for out in kind.cell.output_numbers)
    kinds = sorted(set(widened.values()), key=lambda kind: (kind.cell.digest, tables.binding_order(kind.binding)))
    place = {kind: position for position, kind in enumerate(kinds)}
    of_kind = np.full(len(tables.kinds), -1)
    for number, kind in widened.items():
        of_kind[number] = place[kind]
    return Types(kinds, of_kind, outputs)


def _shared_rows(
    batch: Batch, types: Types, tables: Tables, further: Iterable[int]
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """For each class the shared values that are needed as rows, and the row of each shared value."""
    needed = {*np.unique(batch.shared_numbers).tolist(), *further}
    for number in types.outputs:
        merged = types.kinds[types.of_kind[number]].binding
        own_binding = tables.kinds[number].binding
        needed.update(own for own, now in zip(own_binding, merged, strict=True) if own != ROW and now == ROW)
    rows: list[tuple[int, ...]] = [()] * len(tables.classes)
    position = np.full(len(tables.shared), -1, np.int64)
    for number in sorted(needed, key=tables.shared_order):
        in_class = tables.shared_class[number]
        position[number] = len(rows[in_class])
        rows[in_class] += (number,)
    return rows, position
