"""Rooms: sizes that plans of a function share, so that a few programs run all of its batches."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plan import Plan
from jitbatch.util.caches import CacheInfo

OUTLIER = 2.0
"""A batch with more than this many times the nodes of the largest batch gets a new room. Otherwise all later plans
would have its size."""

MAX_ROOMS = 4
"""The number of rooms at a time. One more drops the smallest."""


class Room(NamedTuple):
    """The sizes of some plans.

    Attributes:
        like: a plan with these sizes, or its capacity.
        nodes: the number of nodes of the largest batch that fitted, before equal calls are merged.
    """

    like: Plan | Capacity
    nodes: int

    def has(self, plan: Plan) -> bool:
        """Whether a plan has exactly the sizes of this room."""
        if isinstance(self.like, Plan):
            return plan.static is self.like.static and plan.sizes.outputs == self.like.sizes.outputs
        return plan.static.program.sizes is not None and plan.capacity == self.like


class Rooms:
    """The rooms of one function with one kind of shared arguments and one number of samples.

    A batch is planned in the smallest room that may be large enough. If it does not fit, the room grows, with headroom
    for larger batches (see `util/headroom`). So a shuffled data set needs two or three programs.

    Args:
        headroom_at_first: whether the first plan has headroom too. It is False where the first plan may be the only
            one.
        known: the rooms of an earlier run, in ascending order.
    """

    def __init__(self, headroom_at_first: bool = False, known: Sequence[Room] = ()):
        self.hits = self.misses = 0
        self._headroom_at_first = headroom_at_first
        self._rooms = list(known)  # in ascending order of nodes
        self._lock = threading.RLock()

    def info(self) -> CacheInfo:
        """Returns the number of plans that fitted, of plans that did not, and of rooms."""
        return CacheInfo(self.hits, self.misses, MAX_ROOMS, len(self._rooms))

    def __iter__(self) -> Iterator[Room]:
        with self._lock:
            return iter(list(self._rooms))

    def plan(self, nodes: int, make: Callable[[Plan | Capacity | None, bool], Plan]) -> Plan:
        """Plans a batch in a room.

        Args:
            nodes: the number of nodes of the batch.
            make: plans the batch. Its arguments are a plan or capacity with the least sizes, or None; and whether to
                add headroom.
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

    def settle(self, room: Room) -> None:
        """Replaces all rooms by one."""
        with self._lock:
            if any(one.like is room.like or one.has(room.like) for one in self._rooms if isinstance(room.like, Plan)):
                self.hits += 1
            else:
                self.misses += 1
            self._rooms = [room]

    def _room_for(self, nodes: int) -> Room | None:
        """Returns the smallest room that may be large enough or may grow, or None."""
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
