"""Engines: the state that all flights of a function in one context share."""

import threading
import warnings
from collections import defaultdict
from collections.abc import Sequence

from jitbatch.ir.cell import Identity
from jitbatch.plan.compiles import RecompileWarning
from jitbatch.record.context import Context
from jitbatch.record.finalise import Recording
from jitbatch.record.structure import Structure
from jitbatch.rollout.arenas import Arenas
from jitbatch.rollout.lowered import KnownTypes, Types
from jitbatch.rollout.program import Program
from jitbatch.rollout.walks import Walks
from jitbatch.util.caches import Cache
from jitbatch.util.sites import describe_function, users_stacklevel
from jitbatch.util.static import Static

MAX_PROGRAMS = 16
"""The number of cached programs for each function and kind of shared arguments."""


MANY_CHANGES = 32
"""A function warns when its rollouts have had this number of different sets of cell types: each takes seconds to
compile."""


class Engine:
    """The state that all flights of a function in one context share.

    Args:
        context: the context.
        names: the names of the mapped arguments, including `decisions`.

    Attributes:
        context, walks, types: see their classes.
    """

    def __init__(self, context: Context, names: Sequence[str]):
        self.context = context
        self._names = names
        context.known_recording = self.recording_of
        self.walks = Walks(context)
        self.types = KnownTypes(context.tables, self.walks.pinned)
        self._programs = Cache(MAX_PROGRAMS)
        self._last_types: Types | None = None
        self._changes = 0
        self._idle: dict[int, list[Arenas]] = defaultdict(list)
        self._lock = threading.Lock()

    def recording_of(self, structure: Structure) -> Recording | None:
        """The recording of a sample with its decisions, if a rollout recorded it; else None."""
        place = self._names.index("decisions")
        sample = structure.sample
        if type(sample[place]) is not Static:
            return None
        alone = Structure((*sample[:place], *sample[place + 1 :]), 0, self._names, has_data=False)
        return self.walks.recording_of(structure, alone.key, sample[place].value)

    def program(self, types: Types, room: int) -> Program:
        """The program for these types and this number of samples in flight."""
        return self._programs.get_or_make((Identity(types), room), lambda: self._new_program(types, room))

    def _new_program(self, types: Types, room: int) -> Program:
        """A program, with a warning if new kinds of cells come again and again."""
        if types is not self._last_types:
            self._last_types = types
            self._changes += 1
            if self._changes == MANY_CHANGES:
                kind_id, _ = list(types.meanings)[-1]
                name, where = self.context.tables.sources.of(self.context.tables.kinds[kind_id].cell)[:2]
                warnings.warn(
                    f"rollouts of {describe_function(self.context.fun)} have been compiled {MANY_CHANGES} times, the "
                    f"last time for the new cell type `{name}` at {where}: its samples have ever new kinds of cells. "
                    "Pass numbers that differ between samples to decorated functions, not in a Static or a closure",
                    RecompileWarning,
                    stacklevel=users_stacklevel(),
                )
        return Program(types, room)

    def borrow(self, room: int) -> Arenas:
        """Arenas for `room` samples in flight. Uses the returned arenas of an earlier flight if there are any."""
        with self._lock:
            idle = self._idle[room]
            return idle.pop() if idle else Arenas(self.context.tables)

    def give_back(self, room: int, arenas: Arenas) -> None:
        arenas.clear()
        with self._lock:
            if len(self._idle[room]) < 1:
                self._idle[room].append(arenas)
