"""Recordings as graphs, of which all numbers are small: those of all new structures of a batch together.

A recording numbers its rows as they come (see `record/rows`), a graph numbers its values: what is given in the order in
which it is read first, inputs before shared values, then what the nodes make. What nothing needs is dropped. All this
but levels, and samples that have something to drop, is done on whole arrays.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import find_input_rows
from jitbatch.ir.tables import Tables
from jitbatch.record.rows import BARE
from jitbatch.util.csr import cut, offsets, ranges


class Recording(NamedTuple):
    """What a sample computes, in terms of the numbers of its rows.

    Attributes:
        kinds, counts: of each node, and how many rows it reads.
        operands: these rows, node after node.
        made: the rows that nodes make, node after node.
        outputs: the rows that are the leaves of the result.
        numbered: how many numbers nodes had for what they make, and bare operations.
        given, given_class: of the rows -1, -2, ... (see `Numbers`).
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


def number(recordings: Sequence[Recording], tables: Tables, are_needed: bool = False) -> list[Graph]:
    """The graphs of some recordings; `are_needed` says that none has nodes that are not needed."""
    many = len(recordings)
    graphs = np.arange(many)
    kind, nodes_of = _joined([one.kinds for one in recordings])
    counts, _ = _joined([one.counts for one in recordings])
    reads, _ = _joined([rows for one in recordings for rows in (one.operands, one.outputs)])
    operands_of = np.array([len(one.operands) for one in recordings])
    outputs_of = np.array([len(one.outputs) for one in recordings])
    reads_of = operands_of + outputs_of
    read_in = graphs.repeat(reads_of)  # the graph
    is_operand = np.arange(2 * many).repeat(np.stack([operands_of, outputs_of], axis=1).ravel()) % 2 == 0

    # What is given, as far as it is read.
    given, given_of = _joined([one.given_class for one in recordings])
    entries = _flat(itertools.chain.from_iterable([one.given for one in recordings]), 3 * len(given)).reshape(-1, 3)
    is_given = reads < 0
    own = offsets(given_of)[read_in[is_given]] - 1 - reads[is_given]  # its place among all that is given
    used = _in_order(own, entries[:, 0] < 0, graphs.repeat(given_of))
    is_shared, used_in = entries[used, 0] < 0, graphs.repeat(given_of)[used]
    inputs_of = np.bincount(used_in[~is_shared], minlength=many)
    used_of = np.bincount(used_in, minlength=many)

    # Values, numbered over all graphs.
    made, made_of = _joined([one.made for one in recordings])
    of_nodes, of_bare = np.array([one.numbered for one in recordings]).T
    first_number = offsets(of_nodes + of_bare)

    def place(rows: np.ndarray, of: np.ndarray) -> np.ndarray:
        """The place of rows of some graphs among all numbers for what is made."""
        return first_number[of] + np.where(rows < BARE, rows, rows - BARE + of_nodes[of])

    number_of = np.empty(first_number[-1], np.int64)
    number_of[place(made, graphs.repeat(made_of))] = np.arange(len(made))
    start = offsets(used_of + made_of)
    value_of_given = np.zeros(len(given), np.int64)
    value_of_given[used] = ranges(start[:-1], used_of)
    value_of_made = ranges(start[:-1] + used_of, made_of)
    value = np.empty(len(reads), np.int64)
    value[is_given] = value_of_given[own]
    is_made = ~is_given
    at = number_of[place(reads[is_made], read_in[is_made])]
    value[is_made] = value_of_made[at]
    ends = tables.ends
    outputs = ends.outputs[kind]
    graph_of, node_of = graphs.repeat(nodes_of), np.arange(len(kind)).repeat(outputs)
    is_read = np.zeros(len(kind), bool)
    is_read[node_of[at]] = True
    if not (are_needed or is_read.all()):  # if something of each is read, so is what reads it, up to the outputs
        some = set(graph_of[~is_read].tolist())
        return number([_needed(one, tables) if i in some else one for i, one in enumerate(recordings)], tables, True)
    output = ranges(ends.first_output[kind], outputs)  # which end of an edge each value is that is made
    value_class = np.empty(start[-1], np.int64)
    value_class[ranges(start[:-1], used_of)] = given[used]
    value_class[value_of_made] = ends.out_class[output]

    # What reads what.
    operand_start = offsets(counts)
    reader = np.arange(len(kind)).repeat(counts)
    column = np.arange(len(reader)) - operand_start[reader]
    is_edge = is_made[is_operand]
    reader, column, at = reader[is_edge], column[is_edge], at[is_operand[is_made]]
    slot = ends.first_slot[kind[reader]] + np.where(ends.is_variadic[kind[reader]], 0, column)
    level = levels_of(len(kind), reader, node_of[at])

    kinds_present = _present(many, graph_of, kind)
    edges_present = _present(many, graph_of[reader], _edges(output[at], slot, tables))
    entries = entries[used]
    input_rows = find_input_rows(
        used_in[~is_shared], entries[~is_shared], given[used][~is_shared], [c.dtype for c in tables.classes.entries],
        [one.leaf_shapes for one in recordings], [one.constants for one in recordings],
    )  # fmt: skip
    value -= start[:-1].repeat(reads_of)
    first_values = _with_ends(offsets(outputs), nodes_of) + (used_of.cumsum() - start[:-1]).repeat(nodes_of + 1)
    operand_starts = _with_ends(operand_start, nodes_of) - offsets(operands_of)[:-1].repeat(nodes_of + 1)
    columns = {
        "inputs": [one.T for one in _small(entries[~is_shared].T, inputs_of)],
        "shared_rows": _small(entries[is_shared, 1], used_of - inputs_of),
        "kind": _small(kind, nodes_of),
        "operand_start": _small(operand_starts, nodes_of + 1),
        "operands": _small(value[is_operand], operands_of),
        "value_class": _small(value_class, used_of + made_of),
        "outputs": _small(value[~is_operand], outputs_of),
        "level": _small(level, nodes_of),
        "node_values": _small(first_values, nodes_of + 1),
        "kinds_present": kinds_present,
        "edges_present": edges_present,
        "input_rows": input_rows,
        "leaf_shapes": [one.leaf_shapes for one in recordings],
        "constants": [one.constants for one in recordings],
        "out_tree": [one.out_tree for one in recordings],
        "structure": [one.structure for one in recordings],
    }
    return [Graph(tables, **dict(zip(columns, one, strict=True))) for one in zip(*columns.values(), strict=True)]


def _flat(numbers: Iterable[Iterable[int]], count: int) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(numbers), np.int64, count)


def _joined(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of numbers one after the other, and how long each is."""
    lengths = np.array(list(map(len, lists)), np.int64)
    return _flat(lists, int(lengths.sum())), lengths


def _in_order(read: np.ndarray, is_shared: np.ndarray, graph: np.ndarray) -> np.ndarray:
    """What is read of all that is given: graph by graph, inputs before shared values, in the order of reading."""
    first = np.full(len(is_shared), -1)
    first[read[::-1]] = np.arange(len(read))[::-1]  # the last entry counts
    used = np.flatnonzero(first >= 0)
    return used[np.lexsort((first[used], is_shared[used], graph[used]))]


def _needed(recording: Recording, tables: Tables) -> Recording:
    """The same with only those nodes that the outputs need, or that have effects."""
    kinds, counts, operands, made, outputs, *_ = recording
    starts = list(itertools.accumulate(counts, initial=0))
    firsts = list(itertools.accumulate([len(tables.kind_classes[kind]) for kind in kinds], initial=0))
    needed = set(outputs)
    order: list[int] = []
    for node in reversed(range(len(kinds))):
        makes = made[firsts[node] : firsts[node + 1]]
        if tables.kinds[kinds[node]].cell.has_effects or not needed.isdisjoint(makes):
            needed.update(operands[starts[node] : starts[node + 1]])
            order.append(node)
    order.reverse()
    return recording._replace(
        kinds=[kinds[node] for node in order],
        counts=[counts[node] for node in order],
        operands=[row for node in order for row in operands[starts[node] : starts[node + 1]]],
        made=[row for node in order for row in made[firsts[node] : firsts[node + 1]]],
    )


def levels_of(nodes: int, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [nodes]; 0 for nodes that read no other node, else one more than the highest level read. Edges are given in
    the order of what reads, and nodes are in topological order."""
    is_new = np.ones(len(reader), bool)
    is_new[1:] = (reader[1:] != reader[:-1]) | (read[1:] != read[:-1])
    level = [0] * nodes
    for node, other in zip(reader[is_new].tolist(), read[is_new].tolist(), strict=True):
        above = level[other] + 1
        if above > level[node]:
            level[node] = above
    return np.array(level, np.int32)


def _edges(output: np.ndarray, slot: np.ndarray, tables: Tables) -> np.ndarray:
    """The numbers of edges between ends (see `Ends`)."""
    ends = int(slot.max(initial=0)) + 1
    codes, which = _distinct(output * ends + slot)
    return np.array([tables.edge_number(*divmod(code, ends)) for code in codes.tolist()], np.int64)[which]


def _present(graphs: int, graph: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
    """The distinct numbers of each graph, ascending."""
    distinct, which = _distinct(numbers)
    is_there = np.zeros((graphs, len(distinct)), bool)
    is_there[graph, which] = True
    return [distinct[one] for one in is_there]


def _distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers, ascending, and which of them each number is."""
    bound = int(numbers.max(initial=-1)) + 1
    if bound > 4 * len(numbers) + 1024:
        return np.unique(numbers, return_inverse=True)
    is_there = np.zeros(bound, bool)  # small ones need not be sorted
    is_there[numbers] = True
    return np.flatnonzero(is_there), (is_there.cumsum() - 1)[numbers]


def _small(array: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    return cut(array.astype(np.int32), counts)


def _with_ends(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of starts of the items of several graphs, one after the other, those of each graph and where its last ends."""
    return starts[ranges(offsets(counts)[:-1], counts + 1)]
