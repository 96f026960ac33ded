"""A flight: samples in flight, from one sync to the next.

In a sync, each sample continues to its next question, or further if its answers can be predicted. One compiled program
computes all of this, and then all questions are answered. Samples join before a sync. They leave at the end of the sync
in which they return.
"""

import time
from typing import Any

import numpy as np

from jitbatch.ir.tables import Tables
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.decisions import Realised
from jitbatch.record.noted_call import without_collections
from jitbatch.record.shared_arguments import SharedArguments, shared_difference
from jitbatch.record.structure import Structure
from jitbatch.rollout.engine import Engine
from jitbatch.rollout.held import Held
from jitbatch.rollout.live import Live
from jitbatch.rollout.segments import Segment
from jitbatch.rollout.stretches import Stretch, may_guess
from jitbatch.rollout.tickets import Ticket, Times
from jitbatch.rollout.walks import Walker
from jitbatch.util import compat
from jitbatch.util.errors import PlanError, QuestionError
from jitbatch.util.meshes import without_explicit_mesh
from jitbatch.util.sites import describe_function


class Flight:
    """Samples in flight.

    Args:
        engine: the engine of the function in a context.
        realised: the function.
        shared: the shared arguments.
        arguments: the arguments of a call; its samples are ignored.
        room: the number of samples that may be in flight at the same time.

    Attributes:
        room: see above.
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
        self._held = Held(engine, shared, room)
        self._tickets: dict[Ticket, None] = {}  # an ordered set, in the order of admission
        self._free_slots = list(range(room))[::-1]
        self._count = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def context(self) -> Context:
        """The context in which samples are recorded."""
        return self._engine.context

    @property
    def tables(self) -> Tables:
        """The tables of the context."""
        return self.context.tables

    def close(self) -> None:
        """Cancel all samples in flight. The flight cannot be used afterwards."""
        errors = []
        for ticket in list(self._tickets):
            try:
                self.cancel(ticket)
            except Exception as error:
                errors.append(error)
        self._held.give_back()
        if errors:
            raise errors[0]

    def admit(self, *sample: Any) -> Ticket:
        """Add a sample. It takes part from the next sync on.

        Args:
            sample: the mapped arguments of one sample.
        """
        if len(self) == self.room:
            raise PlanError(f"there is no room in this flight: {self.room} samples are in flight")
        index = self._count
        structure = Structure(sample, index, self._names)

        def begin() -> Live:
            name = f"sample {index} of {self._name}"
            fun, context = self._realised.asynchronous, self._engine.context
            return Live(context, fun, structure, index, name, self._shared, self._arguments)

        ticket = Ticket(index, structure, Walker(self._engine.walks, structure, begin))
        ticket.slot = self._free_slots.pop()
        self._count += 1
        self._tickets[ticket] = None
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a waiting sample: its `finally` blocks run. A finished sample is left unchanged."""
        if not ticket.done:
            self._leave(ticket)
            ticket.walker.close()

    def update(self, *shared: Any) -> None:
        """Replace the shared arguments by others of the same structure, from the next sync on."""
        found = SharedArguments(shared)
        if found.key != self._shared.key:
            told = shared_difference(self._shared.key, found.key, self._arguments)
            raise PlanError(f"the shared arguments differ in structure, shape or dtype from the earlier ones: {told}")
        self._shared = found
        self._held.update(found)

    @without_explicit_mesh
    def advance(self) -> list[Ticket]:
        """Run one sync. Returns the finished samples, including those that raised an error."""
        if not self._tickets:
            return []
        if self._held.has_failed:
            raise PlanError(f"an earlier sync of this flight of {self._name} has failed: close it and make another one")
        self._held.has_failed = True  # until the sync has ended, also for a KeyboardInterrupt
        done = self._sync()
        self._held.has_failed = False
        return done

    def _sync(self) -> list[Ticket]:
        with compat.eval_context():
            begun = time.perf_counter()
            done, stretches = self._go_on()
            self.times.python += time.perf_counter() - begun
            if going := list(self._tickets):
                self._held.run(going, stretches, self.times)
                at = time.perf_counter()
                answers = self._held.read(going, stretches)
                self.times.read += time.perf_counter() - at
                for ticket, stretch, leaves in zip(going, stretches, answers, strict=True):
                    self._answer(ticket, stretch, leaves)
            self.times.syncs += 1
        for ticket in going:
            if ticket.tree is not None:
                self._leave(ticket)
                ticket.walker.close()
                done.append(ticket)
        return done

    def _answer(self, ticket: Ticket, stretch: Stretch, leaves: list[Any]) -> None:
        """Pass the answers to a sample, or store the result of a finished sample."""
        walker = ticket.walker
        before = len(walker.path)
        result = walker.go(stretch, leaves)
        self.times.segments += len(walker.path) - before
        if result is not None:
            ticket.classes = tuple(walker.path[-1].asked_classes.tolist())
            ticket.leaves = list(map(self._as_array, result, ticket.classes))
            ticket.tree = walker.path[-1].tree

    def _as_array(self, leaf: Any, class_id: int) -> Any:
        """A leaf of a result as an array. A number gets the dtype of its value class."""
        return leaf if hasattr(leaf, "dtype") else np.asarray(leaf, self.tables.classes[class_id].dtype)

    # Continuing the samples

    def _go_on(self) -> tuple[list[Ticket], list[Stretch]]:
        """The samples that raised an error, and for each of the others the segments that it runs in this sync."""
        walks = self._engine.walks
        tickets = list(self._tickets)
        found = walks.find([ticket.walker.key for ticket in tickets])
        failed, stretches = [], []
        settings: Any = None
        guesses = may_guess()
        with without_collections():
            for ticket, segment in zip(tickets, found, strict=True):
                if segment is None:
                    settings = settings or compat.trace_context()
                    segment = self._record(ticket, settings)
                if segment is None:
                    failed.append(ticket)
                else:
                    stretches.append(walks.stretch(segment, ticket.walker.limit if guesses else 1))
        return failed, stretches

    def _record(self, ticket: Ticket, settings: Any) -> Segment | None:
        """The next segment of a sample, recorded by running its code. None if the code raised an error."""
        try:
            segment = ticket.walker.record()
            if compat.trace_context() is not settings:
                place = f" at {segment.where}" if segment.where else ""
                raise QuestionError(
                    f"JAX's settings (precision, x64, ...) were changed across a question{place}, in sample "
                    f"{ticket.index} of {self._name}. They are those of a thread, so they would hold for all samples: "
                    "ask outside of the `with` block that changes them"
                )
            self._engine.types.learn(segment)  # first: once it is known, another thread may run it
            self.times.recorded += 1
            return ticket.walker.kept(segment)
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
        del self._tickets[ticket]
        slot, ticket.slot, ticket.done = ticket.slot, None, True
        assert slot is not None
        self._held.free(slot)
        self._free_slots.append(slot)
