"""The leaves of samples as rows: all leaves of one class, one after the other, are rows of one array."""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jitbatch.util.array_leaves import NUMBERS

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


def input_rows(
    of_input: np.ndarray, counts: np.ndarray, leaves: Sequence[Sequence[int]], dtypes: Sequence[Any],
    constants: tuple[Any, ...],
) -> InputRows:  # fmt: skip
    """The rows of the inputs of a graph.

    Args:
        of_input, counts: see `InputRows`.
        leaves: for each class that the sample has rows of, the leaves that are these rows.
        dtypes: those of all classes.
        constants: those of the graph.
    """
    takes = [
        (number, dtypes[number], _taking(own)) for number, own in zip(counts[0].tolist(), leaves, strict=True)
    ]  # fmt: skip
    return InputRows(of_input, counts, tuple(takes), constants)


def _taking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items in some places out of a sequence, without a loop in Python if they are many."""
    if len(places) == 1:
        return operator.itemgetter(slice(places[0], places[0] + 1))
    return operator.itemgetter(*places)
