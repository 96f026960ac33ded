"""A flight: samples that are on their way, from one sync to the next.

In a sync, each sample goes on to its next question; what all of them do until then is run by one compiled program; and
their questions are answered. Samples join before any sync, and leave at the end of the one in which they return.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.batch.inputs import stack_on_host
from jitbatch.execute.arenas import shared_values
from jitbatch.ir.cell import Identity
from jitbatch.ir.tables import Tables
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.decisions import Realised, encoded
from jitbatch.record.finalise import Recording
from jitbatch.record.noted_call import without_collections
from jitbatch.record.questions import numbers_of
from jitbatch.record.shared_arguments import SharedArguments, shared_difference
from jitbatch.record.structure import Structure
from jitbatch.rollout.arenas import Arenas
from jitbatch.rollout.assemble import Nodes, buffers
from jitbatch.rollout.live import Live
from jitbatch.rollout.lowered import KnownTypes, Types, lowered
from jitbatch.rollout.program import Program
from jitbatch.rollout.segments import ZERO, Fed, Segment
from jitbatch.rollout.walks import Walker, Walks
from jitbatch.util import compat
from jitbatch.util.caches import Cache
from jitbatch.util.errors import PlanError, QuestionError
from jitbatch.util.meshes import without_explicit_mesh
from jitbatch.util.sites import describe_function
from jitbatch.util.static import Static

MAX_PROGRAMS = 16
"""Programs remembered for each function and kind of shared arguments."""

VALUES = 256
"""The number of values that a sample has room for at first."""


class Engine:
    """What all flights of a function in one context have in common.

    Args:
        context: the context.
        names: the names of the mapped arguments, `decisions` among them.

    Attributes:
        context, walks, types: see there.
    """

    def __init__(self, context: Context, names: Sequence[str]):
        self.context = context
        self._names = names
        context.known_recording = self.recording_of
        self.walks = Walks(context)
        self.types = KnownTypes(context.tables, self.walks.pinned)
        self._programs = Cache(MAX_PROGRAMS)
        self._idle: dict[int, list[Arenas]] = defaultdict(list)
        self._lock = threading.Lock()

    def recording_of(self, structure: Structure) -> Recording | None:
        """The recording of a sample with its decisions, if it was made on the way."""
        place = self._names.index("decisions")
        sample = structure.sample
        alone = Structure((*sample[:place], *sample[place + 1 :]), 0, self._names, has_data=False)
        return self.walks.recording_of(structure, alone.key, sample[place].value)

    def program(self, types: Types, room: int) -> Program:
        """The program for some types and samples in flight."""
        return self._programs.get_or_make((Identity(types), room), lambda: Program(types, room))

    def borrow(self, room: int) -> Arenas:
        """Arenas for so many samples in flight: those of an earlier flight, if it returned them."""
        with self._lock:
            idle = self._idle[room]
            return idle.pop() if idle else Arenas(self.context.tables)

    def give_back(self, room: int, arenas: Arenas) -> None:
        arenas.clear()
        with self._lock:
            if len(self._idle[room]) < 1:
                self._idle[room].append(arenas)


class Ticket:
    """A sample in flight.

    Attributes:
        index: how many samples the flight had before it.
        structure: its structure.
        walker: its way.
        slot: its slot; None before its first sync and after its last.
        error: the exception that it raised, or None.
        leaves, tree, classes: of its result, once it is done: NumPy arrays, their tree and value classes.
        done: whether it has returned, raised, or was cancelled.
    """

    def __init__(self, index: int, structure: Structure, walker: Walker):
        self.index = index
        self.structure = structure
        self.walker = walker
        self.slot: int | None = None
        self.error: BaseException | None = None
        self.leaves: list[Any] = []
        self.classes: tuple[int, ...] = ()
        self.tree: Any = None
        self.done = False

    @property
    def result(self) -> Any:
        """What the sample returned, with NumPy arrays as leaves. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.tree.unflatten(self.leaves)

    @property
    def decisions(self) -> Static[Any]:
        """The answers so far (see `Decisions`)."""
        walker = self.walker
        asked = zip(walker.path, walker.answers, strict=False)
        return Static(tuple((segment.place, encoded(answer)) for segment, answer in asked))


class Times:
    """Seconds on the host, added up over syncs.

    Attributes:
        python: the code of samples, recording it, and finding what is known.
        assemble: rows and buffers for the program.
        call: writing inputs and calling the program.
        read: waiting for answers, and reading them.
        syncs: the number of syncs.
        recorded: how many segments were recorded, all others were known.
    """

    def __init__(self) -> None:
        self.python = self.assemble = self.call = self.read = 0.0
        self.syncs = self.recorded = self.segments = 0

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {1e3 * getattr(self, name):.1f} ms" for name in ("python", "assemble", "call", "read")
        )
        return f"Times({self.syncs} syncs, {self.recorded} of {self.segments} segments recorded: {parts})"


class Flight:
    """Samples on their way.

    Args:
        engine: of the function in a context.
        realised: the function.
        shared: the shared arguments.
        arguments: the arguments of a call; its samples are ignored.
        room: the number of samples that may be in flight at the same time.

    Attributes:
        room: as above.
        times: seconds on the host.
    """

    def __init__(
        self, engine: Engine, realised: Realised, shared: SharedArguments, arguments: Arguments, room: int
    ):  # fmt: skip
        self.room = room
        self.times = Times()
        self._engine = engine
        self._realised = realised
        self._shared = shared
        self._arguments = arguments
        self._names = [part.name for part in arguments.mapped]
        self._name = describe_function(realised)
        self._arenas = engine.borrow(room)
        self._tickets: list[Ticket] = []
        self._free_slots = list(range(room))[::-1]
        self._count = 0
        self._rows = np.full((room, VALUES), -1, np.int32)
        self._classes = np.full((room, VALUES), -1, np.int16)
        self._pinned = np.zeros(1, np.int32)  # the rows of `ZERO` and of the pinned rows; -1 where there is none yet
        self._shared_values: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def context(self) -> Context:
        """The context that samples are recorded in."""
        return self._engine.context

    @property
    def tables(self) -> Tables:
        """The tables of the context."""
        return self.context.tables

    def close(self) -> None:
        """Cancel what is in flight. The flight must not be used any more."""
        errors = []
        for ticket in list(self._tickets):
            try:
                self.cancel(ticket)
            except Exception as error:
                errors.append(error)
        self._engine.give_back(self.room, self._arenas)
        if errors:
            raise errors[0]

    def admit(self, *sample: Any) -> Ticket:
        """Add a sample, which takes part from the next sync on.

        Args:
            sample: the mapped arguments of one sample.
        """
        if len(self) == self.room:
            raise PlanError(f"there is no room in this flight: {self.room} samples are in flight")
        index = self._count
        structure = Structure(sample, index, self._names)
        name = f"sample {index} of {self._name}"

        def begin() -> Live:
            fun, context = self._realised.asynchronous, self._engine.context
            return Live(context, fun, structure, index, name, self._shared, self._arguments)

        ticket = Ticket(index, structure, Walker(self._engine.walks, structure, begin))
        ticket.slot = self._free_slots.pop()
        self._count += 1
        self._tickets.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a sample where it waits: its `finally` blocks run. Nothing happens if it is done."""
        if not ticket.done:
            self._leave(ticket)
            ticket.walker.close()

    def update(self, *shared: Any) -> None:
        """Go on with other shared arguments of the same structure, from the next sync on."""
        found = SharedArguments(shared)
        if found.key != self._shared.key:
            told = shared_difference(self._shared.key, found.key, self._arguments)
            raise PlanError(f"the shared arguments differ in structure, shape or dtype from the earlier ones: {told}")
        self._shared = found
        self._shared_values = {}
        pins = self._engine.walks.pinned
        for pin, row in enumerate(self._pinned[1:].tolist()):
            if row >= 0 and pins[pin].shared_id is not None:
                self._pinned[1 + pin] = -1

    @without_explicit_mesh
    def advance(self) -> list[Ticket]:
        """One sync. Returns the samples that are done, also those that raised an error."""
        if not self._tickets:
            return []
        with compat.eval_context():
            begun = time.perf_counter()
            done, segments = self._go_on()
            recorded = time.perf_counter()
            self.times.python += recorded - begun
            going = list(self._tickets)
            if going:
                self._run(going, segments)
                at = time.perf_counter()
                self._answer(going, segments)
                self.times.read += time.perf_counter() - at
            self.times.syncs += 1
        for ticket, segment in zip(going, segments, strict=True):
            if segment.has_ended:
                self._leave(ticket)
                ticket.walker.close()
                done.append(ticket)
        return done

    # The samples go on

    def _go_on(self) -> tuple[list[Ticket], list[Segment]]:
        """The samples that raised an error, and the next segment of each of the others."""
        tickets = list(self._tickets)
        found = self._engine.walks.find([ticket.walker.key for ticket in tickets])
        failed, segments = [], []
        settings: Any = None
        with without_collections():
            for ticket, segment in zip(tickets, found, strict=True):
                if segment is None:
                    settings = settings or compat.trace_context()
                    segment = self._record(ticket, settings)
                if segment is None:
                    failed.append(ticket)
                    continue
                ticket.walker.path.append(segment)
                segments.append(segment)
        self.times.segments += len(segments)
        return failed, segments

    def _record(self, ticket: Ticket, settings: Any) -> Segment | None:
        """The next segment of a sample, by running its code; None if that raised an error."""
        try:
            segment = ticket.walker.record()
            if compat.trace_context() is not settings:
                place = f" at {segment.where}" if segment.where else ""
                raise QuestionError(
                    f"JAX's settings (precision, x64, ...) were changed across a question{place}, in sample "
                    f"{ticket.index} of {self._name}. They are those of a thread, so they would hold for all samples: "
                    "ask outside of the `with` block that changes them"
                )
            self._engine.types.learn(segment)
            self.times.recorded += 1
            return segment
        except Exception as error:
            ticket.error = error
            self._leave(ticket)
            try:
                ticket.walker.close()
            except Exception as further:
                error.add_note(f"jitbatch: ending the sample raised {type(further).__name__}: {further}")
            return None

    def _leave(self, ticket: Ticket) -> None:
        """Free the slot of a sample."""
        self._tickets.remove(ticket)
        slot, ticket.slot, ticket.done = ticket.slot, None, True
        assert slot is not None
        self._rows[slot] = -1
        self._classes[slot] = -1
        self._free_slots.append(slot)

    # What they need is run

    def _run(self, tickets: Sequence[Ticket], segments: Sequence[Segment]) -> None:
        at = time.perf_counter()
        tables, arenas = self.tables, self._arenas
        types = self._engine.types.decided()
        program = self._engine.program(types, self.room)
        parts = [lowered(segment, types, tables) for segment in segments]
        slots = np.array([ticket.slot for ticket in tickets], np.int32)
        nodes = Nodes(parts, slots)
        missing = self._missing_pins(frozenset().union(*(part.pins for part in parts)))
        self._make_room(nodes, types, segments, missing)
        self._pin(missing)
        self._feed(tickets, segments)
        shared = self._values_of(types.shared)
        for buffer in buffers(nodes, program, arenas.take, self._rows, self._classes, self._pinned):
            now = time.perf_counter()
            self.times.assemble += now - at
            arenas.run(program.call, buffer, shared, types.classes)
            at = time.perf_counter()
            self.times.call += at - now
        self.times.assemble += time.perf_counter() - at

    def _missing_pins(self, pins: frozenset[int]) -> list[int]:
        """The pinned rows among these that have no row yet."""
        count = 1 + len(self._engine.walks.pinned)
        if count > len(self._pinned):
            self._pinned = np.pad(self._pinned, (0, count - len(self._pinned)), constant_values=-1)
        return [pin for pin in sorted(pins) if self._pinned[1 + pin] < 0]

    def _make_room(self, nodes: Nodes, types: Types, segments: Sequence[Segment], missing: Sequence[int]) -> None:
        """Make room for values of samples, and for rows in the arenas."""
        values = max(segment.count for segment in segments)
        if values > self._rows.shape[1]:
            more = max(values, 2 * self._rows.shape[1]) - self._rows.shape[1]
            self._rows = np.pad(self._rows, ((0, 0), (0, more)), constant_values=-1)
            self._classes = np.pad(self._classes, ((0, 0), (0, more)), constant_values=-1)
        needed: dict[int, int] = defaultdict(int)
        for _, type_id, begin, end in nodes.steps:
            for class_id in types.writes[type_id]:
                needed[class_id] += end - begin
        for fed in itertools.chain(*(segment.fed for segment in segments)):
            needed[fed.value_class] += len(fed.values)
        for pin in missing:
            needed[self._engine.walks.pinned[pin].value_class] += 1
        every = types.classes.union(needed, *(segment.classes for segment in segments))
        self._arenas.add(sorted(every.difference(self._arenas.arrays)))
        for class_id, count in needed.items():
            if not self._arenas.has_room(class_id, count):
                self._move(class_id, count)

    def _move(self, class_id: int, count: int) -> None:
        """Move the rows of a value class that are needed to the beginning of its arena."""
        own = self._classes == class_id
        pins = self._engine.walks.pinned.entries
        pinned = np.array([1 + pin for pin, one in enumerate(pins) if one.value_class == class_id], np.int64)
        pinned = pinned[pinned < len(self._pinned)]
        pinned = pinned[self._pinned[pinned] >= 0]
        live = np.unique(np.concatenate([[0], self._rows[own], self._pinned[pinned]]))
        self._arenas.move(class_id, live, count)
        self._rows[own] = np.searchsorted(live, self._rows[own])
        self._pinned[pinned] = np.searchsorted(live, self._pinned[pinned])

    def _pin(self, missing: Sequence[int]) -> None:
        """Write these pinned rows."""
        if not missing:
            return
        tables = self.tables
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
        """These shared values."""
        missing = tuple(one for one in shared_ids if one not in self._shared_values)
        if missing:
            tables = self.tables
            self._shared_values.update(shared_values(tables, tuple(sorted(missing)), self._shared.leaves))
        return {one: self._shared_values[one] for one in shared_ids}

    def _feed(self, tickets: Sequence[Ticket], segments: Sequence[Segment]) -> None:
        """Write the inputs that are read for the first time."""
        fed: dict[int, list[tuple[Ticket, Fed]]] = defaultdict(list)
        for ticket, segment in zip(tickets, segments, strict=True):
            for one in segment.fed:
                fed[one.value_class].append((ticket, one))
        for class_id, some in fed.items():
            value_class = self.tables.classes[class_id]
            arrays = [
                leaf if rows is None else stack_on_host([leaf], value_class)[rows]
                for ticket, one in some
                for leaf, rows in ((ticket.structure.leaves[leaf], rows) for leaf, rows in one.leaves)
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
            self._rows[slots, values] = np.arange(first, first + len(values))
            self._classes[slots, values] = class_id

    # Their questions are answered

    def _answer(self, tickets: Sequence[Ticket], segments: Sequence[Segment]) -> None:
        """Read what was asked for, and the results."""
        counts = [len(segment.asked) for segment in segments]
        values = np.concatenate([segment.asked for segment in segments])
        classes = np.concatenate([segment.asked_classes for segment in segments])
        slots = np.repeat(np.array([ticket.slot for ticket in tickets], np.int64), counts)
        rows = np.where(values >= 0, self._rows[slots, values], self._pinned[ZERO - np.minimum(values, ZERO)])
        leaves: list[Any] = [None] * len(values)
        for class_id in np.unique(classes).tolist():
            places = np.flatnonzero(classes == class_id)
            array = self._arenas.read(class_id, rows[places])
            is_number = array.ndim == 1 and not self.tables.classes[class_id].is_key
            for place, leaf in zip(places.tolist(), numbers_of(array) if is_number else array, strict=True):
                leaves[place] = leaf
        at = 0
        for ticket, segment, count in zip(tickets, segments, counts, strict=True):
            own = leaves[at : at + count]
            if segment.has_ended:
                ticket.classes = tuple(segment.asked_classes.tolist())
                ticket.leaves, ticket.tree = list(map(self._as_array, own, ticket.classes)), segment.tree
            else:
                ticket.walker.answer(own)
            at += count

    def _as_array(self, leaf: Any, class_id: int) -> Any:
        """A leaf of a result as an array; a number has the dtype of its value class."""
        return leaf if hasattr(leaf, "dtype") else np.asarray(leaf, self.tables.classes[class_id].dtype)
