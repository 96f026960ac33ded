"""The leaves of samples as rows: all leaves of one class, one after the other, are rows of one array."""

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.csr import cut

Inputs: TypeAlias = Sequence[tuple[int, Sequence[Any]]]
"""The leaves of a sample that are rows: classes, and of each of them numbers and arrays of one or more rows."""


@dataclass(frozen=True, eq=False)
class InputRows:
    """Which leaves of a sample are used, as rows of which classes, and where its inputs are among these.

    Attributes:
        of_input: int [2, inputs]; the class of each input, and which of the sample's rows of that class it is.
        counts: int [2, classes]; the classes, and how many rows of each the sample has.
        takes: for each of these classes its dtype, and what takes the leaves that are its rows, in order, out of all.
        constants: those of the graph, which follow the sample's leaves.
    """

    of_input: np.ndarray
    counts: np.ndarray
    takes: tuple[tuple[int, Any, Callable[[Sequence[Any]], Sequence[Any]]], ...]
    constants: tuple[Any, ...]

    def taken(self, leaves: Sequence[Any]) -> Inputs:
        """The leaves of a sample that are rows."""
        if self.constants:
            leaves = [*leaves, *self.constants]
        return [(number, take(leaves)) for number, _, take in self.takes]

    def packed(self, leaves: Sequence[Any]) -> Inputs:
        """The same for a sample whose numbers stay as they are: these as arrays."""
        taken = zip(self.takes, self.taken(leaves), strict=True)
        return tuple((number, tuple(numbers_together(some, dtype))) for (_, dtype, _), (number, some) in taken)


def numbers_together(leaves: Sequence[Any], dtype: Any) -> Iterator[Any]:
    """Leaves, with numbers that follow each other as one array."""
    for are_numbers, some in itertools.groupby(leaves, lambda leaf: type(leaf) in NUMBERS):
        if are_numbers:
            yield np.array(list(some), dtype)
        else:
            yield from some


def find_input_rows(
    graph: np.ndarray, inputs: np.ndarray, input_class: np.ndarray, dtypes: Sequence[Any],
    leaf_shapes: Sequence[Sequence[tuple[int, ...]]], constants: Sequence[tuple[Any, ...]],
) -> list[InputRows]:  # fmt: skip
    """The rows of the inputs of some graphs; a leaf is used with all its rows, or not at all.

    Args:
        graph: int [inputs]; the graph of each, ascending.
        inputs: int [inputs, 3]; see `Graph.inputs`.
        input_class: int [inputs].
        dtypes: those of all classes.
        leaf_shapes, constants: of each graph.
    """
    many = len(leaf_shapes)
    leaf, depth, row = inputs.T
    # The leaves that are used, with their first axes indexed or not: of a graph and class in the order of inputs.
    bounds = int(leaf.max(initial=0)) + 1, int(depth.max(initial=0)) + 1
    _, first, which = np.unique((graph * bounds[0] + leaf) * bounds[1] + depth, return_index=True, return_inverse=True)
    order = np.lexsort((first, input_class[first], graph[first]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    first = first[order]
    graph_of, class_of, leaf_of, depth_of = graph[first], input_class[first], leaf[first], depth[first]
    rows = np.ones(len(first), np.int64)
    for at in np.flatnonzero(depth_of):
        rows[at] = math.prod(leaf_shapes[graph_of[at]][leaf_of[at]][: depth_of[at]])

    begins = np.flatnonzero(np.diff(graph_of * len(dtypes) + class_of, prepend=-1))  # of a graph and class
    before = rows.cumsum() - rows
    start = before - before[begins].repeat(np.diff(begins, append=len(first)))
    of_input = np.stack([input_class, start[place[which]] + row])
    counts = np.stack([class_of[begins], np.add.reduceat(rows, begins) if len(begins) else rows])
    leaves, ends = leaf_of.tolist(), [*begins[1:].tolist(), len(first)]
    takes = [
        (number, dtypes[number], _taking(leaves[begin:end]))
        for number, begin, end in zip(class_of[begins].tolist(), begins.tolist(), ends, strict=False)
    ]
    classes_of = np.bincount(graph_of[begins], minlength=many)
    last = classes_of.cumsum().tolist()
    return [
        InputRows(own, own_counts, tuple(takes[end - len(own_counts[0]) : end]), own_constants)
        for own, own_counts, end, own_constants in zip(
            cut(of_input, np.bincount(graph, minlength=many)), cut(counts, classes_of), last, constants, strict=True
        )
    ]


def _taking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items in some places out of a sequence, without a loop in Python if they are many."""
    if len(places) == 1:
        return operator.itemgetter(slice(places[0], places[0] + 1))
    return operator.itemgetter(*places)
