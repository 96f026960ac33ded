"""Segments: the nodes of a sample between two questions, in terms of the values of that sample.

A sample numbers its values in the order of their first use: inputs and node outputs. Shared values and constants that
are needed as rows are the same for all samples. They are *pinned* rows.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.ir.cell import array_key
from jitbatch.ir.tables import Interned, Tables
from jitbatch.record.graph_builder import GraphBuilder
from jitbatch.record.nodes import Part
from jitbatch.rollout.live import Asked, Live

ZERO = -1
"""In place of a value: the row of zeros of its arena. The pinned row with id k is `ZERO - 1 - k`."""


MAX_PINNED = 1 << 14
"""The number of pinned rows of a function from which further constants are inputs of each sample: answers that are real
numbers would otherwise need more and more rows."""


class Pinned(NamedTuple):
    """A row that all samples share.

    Attributes:
        value_class: its value class.
        shared_id: the id of a shared value; None for a constant.
        constant: the constant.
    """

    value_class: int
    shared_id: int | None
    constant: Any = None


class PinnedRows(Interned[Pinned]):
    """The pinned rows of a function, by id."""

    def shared(self, tables: Tables, shared_id: int) -> int:
        """The value, below `ZERO`, of a shared value that is a row."""
        found = Pinned(tables.shared_class[shared_id], shared_id)
        return ZERO - 1 - self.number(found, ("shared", shared_id))

    def constant(self, value_class: int, array: Any) -> int | None:
        """The value, below `ZERO`, of a constant that is a row. None if there are too many pinned rows."""
        if len(self) >= MAX_PINNED:
            return None
        return ZERO - 1 - self.number(Pinned(value_class, None, array), ("constant", value_class, array_key(array)))


class Node(NamedTuple):
    """A node: its kind, the values that it reads, and its output values."""

    kind_id: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Input(NamedTuple):
    """An input: its value, a leaf of the sample, and the row of that leaf (see `Graph.inputs`). A constant is an input
    if it is not a pinned row."""

    value: int
    value_class: int
    leaf: int
    depth: int
    row: int
    constant: Any = None


class Fed(NamedTuple):
    """Inputs of one value class.

    Attributes:
        value_class: the value class.
        leaves: the leaves of the sample that hold the inputs, or constants, each with the rows of the inputs; None for
            a whole leaf.
        values: the values of these rows, leaf after leaf.
    """

    value_class: int
    leaves: tuple[tuple[Any, np.ndarray | None], ...]
    values: np.ndarray


class Answered:
    """The recent answers to a question, with their counts."""

    __slots__ = ("_counts",)

    MOST, DISTINCT = 256, 16
    """All counts are halved if one of them is larger than `MOST`, or if there are more than `DISTINCT` answers."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}

    def note(self, answer: Any, times: int) -> None:
        counts = self._counts
        counts[answer] = counts.get(answer, 0) + times
        if len(counts) > self.DISTINCT or counts[answer] > self.MOST:
            self._counts = {one: count // 2 for one, count in list(counts.items()) if count > 1}

    def likely(self) -> tuple[Any, float] | None:
        """The most frequent answer, and its share; None if there is no answer yet."""
        counts = list(self._counts.items())
        if not counts:
            return None
        answer, count = max(counts, key=lambda entry: entry[1])
        return answer, count / sum(count for _, count in counts)


class Segment:
    """The nodes of a sample between two questions.

    Attributes:
        serial: the unique number of the segment in its function.
        nodes: the nodes.
        inputs, fed: the inputs that are read for the first time, one by one and by value class.
        asked: the values of the question, or the leaves of the result.
        asked_classes: their value classes.
        classes: the value classes of `inputs` and `asked`.
        has_ended: whether the sample ends with this segment.
        tree: the tree of the answer, or of the result.
        place, where: the digest and the line of the question; None at the end.
        count: the number of values of the sample after this segment.
        pins: the ids of the pinned rows that it reads.
        can_guess: whether the answer may be predicted: it is one integer or truth value.
        may_run_in_vain: whether the segment may run before the answer to the previous question is known.
        answered: the recent answers of samples (see `rollout/stretches`).
        lowered: the nodes expressed in the current types (see `rollout/lowered`).
    """

    __slots__ = (
        "answered", "asked", "asked_classes", "can_guess", "classes", "count", "fed", "has_ended", "inputs", "lowered",
        "may_run_in_vain", "nodes", "pins", "place", "serial", "tree", "where",
    )  # fmt: skip

    def __init__(self, serial: int, asked: Asked, numbering: "Numbering"):
        self.serial = serial
        self.tree = asked.tree
        self.place = None if asked.question is None else asked.question.place
        self.where = None if asked.question is None else asked.question.where
        self.nodes = numbering.nodes(asked.part)
        self.asked = np.array([numbering.value(row) for row in asked.part.outputs], np.int32)
        self.asked_classes = np.array([numbering.class_of(row) for row in asked.part.outputs], np.int32)
        self.inputs = numbering.new_inputs()
        self.fed = _by_class(self.inputs)
        self.count = numbering.count
        read = [*itertools.chain(*(node.reads for node in self.nodes)), *self.asked.tolist()]
        self.pins = frozenset(ZERO - 1 - value for value in read if value < ZERO)
        self.has_ended = self.place is None
        self.classes = frozenset((*self.asked_classes.tolist(), *(fed.value_class for fed in self.fed)))
        self.can_guess = not self.has_ended and numbering.are_numbers(self.asked_classes.tolist())
        self.may_run_in_vain = numbering.may_run_in_vain(self.nodes)
        self.answered = Answered()
        self.lowered: Any = None


class Numbering:
    """The numbers of a sample's values, during its recording.

    Attributes:
        count: the number of values.
    """

    def __init__(self, live: Live, pinned: PinnedRows):
        self.count = 0
        self._builder: GraphBuilder = live.recorder.builder
        self._tables = live.recorder.tables
        self._pinned = pinned
        self._leaves = len(self._builder.leaf_avals)
        self._values: dict[int, int] = {}
        self._classes: dict[int, int] = {}
        self._new: list[Input] = []

    def nodes(self, part: Part) -> list[Node]:
        """The nodes of a segment."""
        operands, made = iter(part.operands), iter(part.made)
        nodes = []
        for kind_id, count in zip(part.kinds, part.counts, strict=True):
            reads = tuple(map(self.value, itertools.islice(operands, count)))
            classes = self._tables.kind_classes[kind_id]
            makes = tuple(map(self._next, itertools.islice(made, len(classes)), classes))
            nodes.append(Node(kind_id, reads, makes))
        return nodes

    def value(self, row: int) -> int:
        """The value of a row of the recording."""
        found = self._values.get(row)
        if found is not None:
            return found
        leaf, depth, index = self._builder.given[-1 - row]
        constant = None
        if leaf < 0:
            found = self._pinned.shared(self._tables, depth)
        elif leaf >= self._leaves:
            constant = self._builder.constants[leaf - self._leaves]
            found = self._pinned.constant(self.class_of(row), constant)
        if found is None:
            found = self._next(row, self.class_of(row))
            self._new.append(Input(found, self.class_of(row), leaf, depth, index, constant))
        self._values[row] = found
        return found

    def _next(self, row: int, class_id: int) -> int:
        self._values[row], self._classes[row] = self.count, class_id
        self.count += 1
        return self.count - 1

    def class_of(self, row: int) -> int:
        """The value class of a row."""
        return self._builder.given_class[-1 - row] if row < 0 else self._classes[row]

    def are_numbers(self, classes: Sequence[int]) -> bool:
        """Whether these are the value classes of one integer or truth value."""
        found = [self._tables.classes[class_id] for class_id in classes]
        return len(found) == 1 and found[0].shape == () and not found[0].is_key and found[0].dtype.kind in "biu"

    def may_run_in_vain(self, nodes: Sequence[Node]) -> bool:
        """Whether these nodes may run on values that no sample has."""
        return all(self._tables.kinds[node.kind_id].cell.may_run_in_vain for node in nodes)

    def new_inputs(self) -> list[Input]:
        """The inputs that were read for the first time since the last segment."""
        new, self._new = self._new, []
        return new


def _by_class(inputs: Sequence[Input]) -> list[Fed]:
    by_class: dict[int, dict[int, list[Input]]] = {}
    for one in inputs:
        by_class.setdefault(one.value_class, {}).setdefault(one.leaf, []).append(one)
    return [
        Fed(
            class_id,
            tuple(
                (
                    leaf if some[0].constant is None else some[0].constant,
                    np.array([one.row for one in some]) if some[0].depth else None,
                )
                for leaf, some in leaves.items()
            ),
            np.array([one.value for some in leaves.values() for one in some]),
        )
        for class_id, leaves in by_class.items()
    ]
