"""The conversion of a recording into a graph: unused nodes are dropped, and values get consecutive ids."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ends(NamedTuple):
    """The possible ends of edges: the outputs and the row operands (slots) of all kinds, kind after kind.

    Attributes:
        first_output, first_slot: int32 [kinds + 1]; the first output and the first slot of each kind.
        out_class: int32; the value class of each output.
        is_variadic: int32 [kinds]; whether one slot takes all rows that a node reads.
        has_effects: int32 [kinds]; whether a node must run even if no other node reads its outputs.
    """

    first_output: np.ndarray
    out_class: np.ndarray
    first_slot: np.ndarray
    is_variadic: np.ndarray
    has_effects: np.ndarray


class Numbered(NamedTuple):
    """A graph as integers. `Graph` and `InputRows` describe its arrays.

    Attributes:
        numbers: int32; the concatenated arrays.
        ends: the end of each array in `numbers`: inputs, shared rows, kinds, operand starts, operands, value classes,
            outputs, levels, values of nodes, kinds present, rows of inputs, and rows of classes.
        edges: the distinct edges, as pairs of an output and a slot (see `Ends`), ascending.
        leaves: for each value class with input rows, the leaves that hold these rows.
    """

    numbers: np.ndarray
    ends: list[int]
    edges: list[tuple[int, int]]
    leaves: list[list[int]]


def number(
    ends: Ends, kinds: Sequence[int], counts: Sequence[int], operands: Sequence[int], made: Sequence[int],
    outputs: Sequence[int], given: Sequence[tuple[int, int, int]], given_class: Sequence[int],
    leaf_shapes: Sequence[Sequence[int]],
) -> Numbered:  # fmt: skip
    """Number the values of a recording. `ends` describes its kinds; the other arguments are fields of `Recording`.

    The inputs come first, then the shared values, each in the order of their first use. The node outputs follow.
    """
    first_output, out_class, first_slot, is_variadic, has_effects = (array.tolist() for array in ends)
    start = list(itertools.accumulate(counts, initial=0))
    first = list(itertools.accumulate((first_output[k + 1] - first_output[k] for k in kinds), initial=0))
    needed = set(outputs)
    nodes: list[int] = []
    for node in reversed(range(len(kinds))):
        if has_effects[kinds[node]] or not needed.isdisjoint(made[first[node] : first[node + 1]]):
            needed.update(operands[start[node] : start[node + 1]])
            nodes.append(node)
    nodes.reverse()

    reads = [operands[start[node] : start[node + 1]] for node in nodes]
    used = [row for row in dict.fromkeys([*itertools.chain(*reads), *outputs]) if row < 0]
    inputs = [row for row in used if given[-1 - row][0] >= 0]
    shared = [row for row in used if given[-1 - row][0] < 0]
    value = {row: value_id for value_id, row in enumerate(inputs + shared)}
    classes = [given_class[-1 - row] for row in inputs + shared]
    end_of: dict[int, int] = {}  # the output of a kind (see `Ends`) that each value is
    level_of: dict[int, int] = {}
    levels: list[int] = []
    node_values = [len(value)]
    edges: set[tuple[int, int]] = set()
    for node, read in zip(nodes, reads, strict=True):
        kind_id = kinds[node]
        for column, row in enumerate(read):
            if row >= 0:
                edges.add((end_of[row], first_slot[kind_id] + (0 if is_variadic[kind_id] else column)))
        levels.append(max((level_of[row] + 1 for row in read if row >= 0), default=0))
        for output, row in enumerate(made[first[node] : first[node + 1]]):
            value[row] = len(value)
            end_of[row] = first_output[kind_id] + output
            level_of[row] = levels[-1]
            classes.append(out_class[end_of[row]])
        node_values.append(len(value))
    rows_of_inputs, class_rows, leaves = _input_rows([given[-1 - row] for row in inputs], classes, leaf_shapes)
    arrays: list[list[int]] = [
        [entry for row in inputs for entry in given[-1 - row]],
        [given[-1 - row][1] for row in shared],
        [kinds[node] for node in nodes],
        list(itertools.accumulate(map(len, reads), initial=0)),
        [value[row] for read in reads for row in read],
        classes,
        [value[row] for row in outputs],
        levels,
        node_values,
        sorted({kinds[node] for node in nodes}),
        rows_of_inputs,
        class_rows,
    ]
    numbers = np.array(list(itertools.chain(*arrays)), np.int32)
    return Numbered(numbers, list(itertools.accumulate(map(len, arrays))), sorted(edges), leaves)


def _input_rows(
    inputs: list[tuple[int, int, int]], classes: list[int], leaf_shapes: Sequence[Sequence[int]]
) -> tuple[list[int], list[int], list[list[int]]]:
    """The input rows of a sample. A leaf that is used contributes all its rows, in the order of first use.

    Returns:
        The value class of each input, then its row among the sample's rows of that class, in one list.
        The value classes of the inputs, then the number of the sample's rows of each, in one list.
        For each of these value classes, the leaves that hold its rows.
    """
    leaves: dict[int, dict[tuple[int, int], int]] = {}  # for each class, the first row of each leaf
    rows: dict[int, int] = {}
    places = []
    for (leaf, depth, row), value_class in zip(inputs, classes, strict=False):
        first_rows = leaves.setdefault(value_class, {})
        if (leaf, depth) not in first_rows:
            first_rows[leaf, depth] = rows.get(value_class, 0)
            rows[value_class] = first_rows[leaf, depth] + math.prod(leaf_shapes[leaf][:depth])
        places.append(first_rows[leaf, depth] + row)
    present = sorted(leaves)
    return (
        classes[: len(inputs)] + places,
        present + [rows[value_class] for value_class in present],
        [[leaf for leaf, _ in leaves[value_class]] for value_class in present],
    )
