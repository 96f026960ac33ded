"""The leaves of a sample as rows: the leaves of one value class are concatenated into the rows of one array."""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jitbatch.util.array_leaves import NUMBERS

Inputs: TypeAlias = Sequence[tuple[int, Sequence[Any]]]
"""The used leaves of a sample: pairs of a value class and its leaves, numbers and arrays of one or more rows."""


@dataclass(frozen=True, eq=False)
class InputRows:
    """The used leaves of a sample by value class, and the positions of its inputs among their rows.

    Attributes:
        of_input: int [2, inputs]; the value class of each input, and its row among the sample's rows of that class.
        counts: int [2, classes]; the value classes of the inputs, and the number of the sample's rows of each.
        takes: for each of these value classes its id, its dtype, and a function that selects its leaves from all.
        constants: the constants of the graph. They follow the sample's leaves.
    """

    of_input: np.ndarray
    counts: np.ndarray
    takes: tuple[tuple[int, Any, Callable[[Sequence[Any]], Sequence[Any]]], ...]
    constants: tuple[Any, ...]

    def taken(self, leaves: Sequence[Any]) -> Inputs:
        """The used leaves of a sample.

        Args:
            leaves: all array leaves of the sample.
        """
        if self.constants:
            leaves = [*leaves, *self.constants]
        return [(class_id, take(leaves)) for class_id, _, take in self.takes]

    def packed(self, leaves: Sequence[Any]) -> Inputs:
        """The used leaves of a sample, with numbers as arrays. For samples that are cached."""
        taken = zip(self.takes, self.taken(leaves), strict=True)
        return tuple((class_id, tuple(numbers_together(some, dtype))) for (_, dtype, _), (class_id, some) in taken)


def numbers_together(leaves: Sequence[Any], dtype: Any) -> Iterator[Any]:
    """The leaves, with each run of consecutive numbers as one array."""
    for are_numbers, some in itertools.groupby(leaves, lambda leaf: type(leaf) in NUMBERS):
        if are_numbers:
            yield np.array(list(some), dtype)
        else:
            yield from some


def input_rows(
    of_input: np.ndarray, counts: np.ndarray, leaves: Sequence[Sequence[int]], dtypes: Sequence[Any],
    constants: tuple[Any, ...],
) -> InputRows:  # fmt: skip
    """The `InputRows` of a graph.

    Args:
        of_input, counts, constants: see `InputRows`.
        leaves: for each value class in `counts`, the indices of its leaves.
        dtypes: the dtypes of all value classes.
    """
    takes = [
        (class_id, dtypes[class_id], _taking(class_leaves))
        for class_id, class_leaves in zip(counts[0].tolist(), leaves, strict=True)
    ]
    return InputRows(of_input, counts, tuple(takes), constants)


def _taking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that selects the items at `places` from a sequence, without a loop in Python."""
    if len(places) == 1:
        return operator.itemgetter(slice(places[0], places[0] + 1))
    return operator.itemgetter(*places)
