"""Rooms: sizes that the plans of a function have in common, so that a few programs serve all of its batches."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plan import Plan
from jitbatch.util.caches import CacheInfo

OUTLIER = 2.0
"""A batch of this many times as many nodes as the largest one so far gets a room of its own: otherwise every later
batch would be as large."""

MAX_ROOMS = 4
"""How many rooms there are at once; past that, the smallest is given up."""


class Room(NamedTuple):
    """Sizes that plans are to have, as a plan or the capacity of one; and how many nodes the largest batch had that
    fitted, before equal calls were merged."""

    like: Plan | Capacity
    nodes: int

    def has(self, plan: Plan) -> bool:
        """Whether a plan that was made like this one has just these sizes."""
        if isinstance(self.like, Plan):
            return plan.static is self.like.static
        return plan.static.program.sizes is not None and plan.capacity == self.like


class Rooms:
    """The rooms of one function with one kind of shared arguments and one number of samples.

    A batch is planned in the smallest room that is large enough. One that does not fit makes its room grow, with
    headroom for larger ones (see `util/headroom`), so that a shuffled data set needs two or three programs.

    Args:
        headroom_at_first: whether the first plan has headroom as well. One that may be the only one has not.
        known: the rooms of an earlier run.
    """

    def __init__(self, headroom_at_first: bool = False, known: Sequence[Room] = ()):
        self.hits = self.misses = 0
        self._headroom_at_first = headroom_at_first
        self._rooms = list(known)  # the smallest first
        self._lock = threading.RLock()

    def info(self) -> CacheInfo:
        """How many plans fitted, how many did not, and how many rooms there are."""
        return CacheInfo(self.hits, self.misses, MAX_ROOMS, len(self._rooms))

    def __iter__(self) -> Iterator[Room]:
        with self._lock:
            return iter(list(self._rooms))

    def plan(self, nodes: int, make: Callable[[Plan | Capacity | None, bool], Plan]) -> Plan:
        """A plan of a batch of so many nodes.

        Args:
            make: plans the batch with at least the sizes of another plan, and with headroom or without.
        """
        room = self._room_for(nodes)
        if room is not None:
            plan = make(room.like, False)
            if room.has(plan):
                return self._fits(room, plan, nodes)
        with self._lock:  # one thread at a time makes a room larger
            found = self._room_for(nodes)
            if found is not None and found is not room:
                plan = make(found.like, False)
                if found.has(plan):
                    return self._fits(found, plan, nodes)
            plan = make(found and found.like, found is not None or self._headroom_at_first)
            self.misses += 1
            if plan.static.program.sizes is not None:
                self._put(found, Room(replace(plan, graphs=()), nodes))
            return plan

    def _room_for(self, nodes: int) -> Room | None:
        """The smallest room that may be large enough, or be made so."""
        with self._lock:
            return next((room for room in self._rooms if nodes <= OUTLIER * room.nodes), None)

    def _fits(self, room: Room, plan: Plan, nodes: int) -> Plan:
        with self._lock:
            self.hits += 1
            is_new = nodes > room.nodes or not isinstance(room.like, Plan)
            if is_new and any(one is room for one in self._rooms):
                self._put(room, Room(replace(plan, graphs=()), max(nodes, room.nodes)))
        return plan

    def _put(self, old: Room | None, new: Room) -> None:
        kept = [room for room in self._rooms if room is not old]
        self._rooms = sorted([*kept, new], key=lambda room: room.nodes)[-MAX_ROOMS:]
