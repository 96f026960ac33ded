"""The values of samples in flight: their rows, and how they are written and read.

Each sample in flight has a slot. A table has the row of each value of each slot.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitbatch.batch.inputs import stack_on_host
from jitbatch.execute.arenas import shared_values
from jitbatch.record.questions import numbers_of
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.rollout.engine import Engine
from jitbatch.rollout.lowered import Lowered
from jitbatch.rollout.segments import ZERO, Fed
from jitbatch.rollout.stretches import Stretch
from jitbatch.rollout.tickets import Ticket, Times

VALUES = 256
"""The initial number of values that a sample has room for."""


class Held:
    """The values of the samples in a flight.

    Args:
        engine: the engine of the function.
        shared: the shared arguments.
        room: the number of slots.

    Attributes:
        rows, classes: int32 [slots, values]; the row and the value class of each value, -1 for unused entries.
        has_failed: whether a sync was interrupted. Then the arenas may be gone, because programs get them to overwrite.
    """

    def __init__(self, engine: Engine, shared: SharedArguments, room: int):
        self.rows = np.full((room, VALUES), -1, np.int32)
        self.classes = np.full((room, VALUES), -1, np.int32)
        self._engine = engine
        self._shared = shared
        self._room = room
        self._tables = engine.context.tables
        self._arenas = engine.borrow(room)
        self.has_failed = False
        self._pinned = np.zeros(1, np.int32)  # the rows of `ZERO` and of the pinned rows; -1 before they are written
        self._shared_values: dict[int, Any] = {}

    def give_back(self) -> None:
        """Return the arenas to the engine, unless a sync has failed. The object cannot be used afterwards."""
        if not self.has_failed:
            self._engine.give_back(self._room, self._arenas)

    def free(self, slot: int) -> None:
        """Free the rows of a slot."""
        self.rows[slot] = -1
        self.classes[slot] = -1

    def update(self, shared: SharedArguments) -> None:
        """Replace the shared arguments by others of the same structure."""
        self._shared = shared
        self._shared_values = {}
        pins = self._engine.walks.pinned
        for pin, row in enumerate(self._pinned[1:].tolist()):
            if row >= 0 and pins[pin].shared_id is not None:
                self._pinned[1 + pin] = -1

    def run(self, tickets: Sequence[Ticket], stretches: list[Stretch], times: Times) -> None:
        """Run the stretches of samples. If stretches need too many rows, they are cut in place to their first
        segments."""
        begun = time.perf_counter()
        types = self._engine.types.decided()
        program = self._engine.program(types, self._room)
        found = [stretch.lowered(types) for stretch in stretches]
        needed = self._needed(program.assembler, found, stretches)
        self._arenas.add(sorted(types.classes.union(needed, *(stretch.classes for stretch in stretches))))
        if not self._arenas.are_few(needed) and any(stretch.guesses for stretch in stretches):
            stretches[:] = [self._engine.walks.stretch(stretch.segments[0], 1) for stretch in stretches]
            found = [stretch.lowered(types) for stretch in stretches]
            needed = self._needed(program.assembler, found, stretches)
        missing = self._missing_pins(frozenset().union(*(nodes.pins for nodes, _ in found)))
        self._make_room(needed, max(stretch.count for stretch in stretches), missing)
        self._pin(missing)
        self._feed(tickets, stretches)
        shared = self._values_of(types.shared)
        slots = np.array([ticket.slot for ticket in tickets], np.int32)
        buffers = self._assemble(program.assembler, [nodes for _, nodes in found], slots)
        assembled = time.perf_counter()
        for buffer in buffers:
            self._arenas.run(program.call, buffer, shared, types.classes)
        times.assemble += assembled - begun
        times.call += time.perf_counter() - assembled

    def _assemble(self, assembler: Any, nodes: Sequence[Any], slots: np.ndarray) -> list[np.ndarray]:
        """The buffers for the program."""
        free = np.zeros(len(self._tables.classes), np.int32)
        for class_id, row in self._arenas.free.items():
            free[class_id] = row
        buffers = assembler.buffers(nodes, slots, self.rows, self.classes, self._pinned, free)
        for class_id in self._arenas.free:
            self._arenas.free[class_id] = int(free[class_id])
        return buffers

    # Room

    def _needed(self, assembler: Any, found: Sequence[tuple[Lowered, Any]], stretches: Sequence[Stretch]) -> Any:
        """The number of rows to write, by value class."""
        needed: dict[int, int] = assembler.rows_needed([nodes for _, nodes in found])
        for fed in itertools.chain.from_iterable([stretch.fed for stretch in stretches]):
            needed[fed.value_class] = needed.get(fed.value_class, 0) + len(fed.values)
        return needed

    def _missing_pins(self, pins: frozenset[int]) -> list[int]:
        """The pinned rows among these that are not written yet."""
        count = 1 + len(self._engine.walks.pinned)
        if count > len(self._pinned):
            self._pinned = np.pad(self._pinned, (0, count - len(self._pinned)), constant_values=-1)
        return [pin for pin in sorted(pins) if self._pinned[1 + pin] < 0]

    def _make_room(self, needed: Mapping[int, int], values: int, missing: Sequence[int]) -> None:
        """Make room for this number of values per sample, and for rows in the arenas."""
        if values > self.rows.shape[1]:
            more = max(values, 2 * self.rows.shape[1]) - self.rows.shape[1]
            self.rows = np.pad(self.rows, ((0, 0), (0, more)), constant_values=-1)
            self.classes = np.pad(self.classes, ((0, 0), (0, more)), constant_values=-1)
        total = defaultdict(int, needed)
        for pin in missing:
            total[self._engine.walks.pinned[pin].value_class] += 1
        self._arenas.add(sorted(total))
        for class_id, count in total.items():
            if not self._arenas.has_room(class_id, count):
                self._move(class_id, count)

    def _move(self, class_id: int, count: int) -> None:
        """Move the rows in use of a value class to the beginning of its arena."""
        own = self.classes == class_id
        pins = self._engine.walks.pinned.entries
        pinned = np.array([1 + pin for pin, one in enumerate(pins) if one.value_class == class_id], np.int64)
        pinned = pinned[pinned < len(self._pinned)]
        pinned = pinned[self._pinned[pinned] >= 0]
        live = np.unique(np.concatenate([[0], self.rows[own], self._pinned[pinned]]))
        self._arenas.move(class_id, live, count)
        self.rows[own] = np.searchsorted(live, self.rows[own])
        self._pinned[pinned] = np.searchsorted(live, self._pinned[pinned])

    # Writing

    def _pin(self, missing: Sequence[int]) -> None:
        """Write these pinned rows."""
        if not missing:
            return
        tables = self._tables
        entries = {pin: self._engine.walks.pinned[pin] for pin in missing}
        shared = self._values_of(tuple(e.shared_id for e in entries.values() if e.shared_id is not None))
        by_class: dict[int, list[int]] = defaultdict(list)
        for pin, entry in entries.items():
            by_class[entry.value_class].append(pin)
        for class_id, some in by_class.items():
            found = [entries[pin] for pin in some]
            arrays = [e.constant if e.shared_id is None else shared[e.shared_id] for e in found]
            rows = np.concatenate([stack_on_host([array], tables.classes[class_id]) for array in arrays])
            first = self._arenas.write(class_id, rows)
            self._pinned[1 + np.array(some)] = np.arange(first, first + len(some))

    def _values_of(self, shared_ids: tuple[int, ...]) -> dict[int, Any]:
        """The values of these shared ids."""
        for one in shared_ids:
            if one not in self._shared_values:  # each by itself, so that other sets of them compile nothing
                self._shared_values.update(shared_values(self._tables, (one,), self._shared.leaves))
        return {one: self._shared_values[one] for one in shared_ids}

    def _feed(self, tickets: Sequence[Ticket], stretches: Sequence[Stretch]) -> None:
        """Write the inputs that are read for the first time."""
        by_class: dict[int, list[tuple[Ticket, Fed]]] = defaultdict(list)
        for ticket, stretch in zip(tickets, stretches, strict=True):
            for one in stretch.fed:
                by_class[one.value_class].append((ticket, one))
        for class_id, some in by_class.items():
            value_class = self._tables.classes[class_id]
            arrays = [
                leaf if rows is None else stack_on_host([leaf], value_class)[rows]
                for ticket, one in some
                for leaf, rows in (
                    (ticket.structure.leaves[leaf] if type(leaf) is int else leaf, rows) for leaf, rows in one.leaves
                )
            ]
            if value_class.is_key:
                arrays = [
                    array if isinstance(array, np.ndarray) else stack_on_host([array], value_class) for array in arrays
                ]
                written = np.concatenate(arrays)
            else:
                written = stack_on_host(arrays, value_class)
            first = self._arenas.write(class_id, written)
            slots = np.repeat([ticket.slot or 0 for ticket, _ in some], [len(one.values) for _, one in some])
            values = np.concatenate([one.values for _, one in some])
            self.rows[slots, values] = np.arange(first, first + len(values))
            self.classes[slots, values] = class_id

    # Reading

    def read(self, tickets: Sequence[Ticket], stretches: Sequence[Stretch]) -> list[list[Any]]:
        """For each sample the answers to its questions and its result: Python numbers for arrays without axes, else
        arrays."""
        counts = [len(stretch.asked) for stretch in stretches]
        values = np.concatenate([stretch.asked for stretch in stretches])
        classes = np.concatenate([stretch.asked_classes for stretch in stretches])
        slots = np.repeat(np.array([ticket.slot for ticket in tickets], np.int64), counts)
        rows = np.where(values >= 0, self.rows[slots, values], self._pinned[ZERO - np.minimum(values, ZERO)])
        leaves: list[Any] = [None] * len(values)
        for class_id in np.unique(classes).tolist():
            places = np.flatnonzero(classes == class_id)
            array = self._arenas.read(class_id, rows[places])
            is_number = array.ndim == 1 and not self._tables.classes[class_id].is_key
            for place, leaf in zip(places.tolist(), numbers_of(array) if is_number else array, strict=True):
                leaves[place] = leaf
        ends = list(itertools.accumulate(counts, initial=0))
        return [leaves[begin:end] for begin, end in itertools.pairwise(ends)]
