"""Rooms: sizes that the plans of a function have in common, so that a few programs serve all of its batches."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from jitbatch._caches import CacheInfo
from jitbatch._plan import Plan

OUTLIER = 2.0
"""A batch of this many times as many nodes as the largest one so far gets a room of its own: otherwise every later
batch would be as large."""

MAX_ROOMS = 4
"""How many rooms there are at once; past that, the smallest is given up."""


class _Room(NamedTuple):
    """A plan whose sizes others are to have, and how many nodes the largest batch had that fitted."""

    plan: Plan
    nodes: int


class Rooms:
    """The rooms of one function with one kind of shared arguments and one number of samples.

    A batch is planned in the smallest room that is large enough. One that does not fit makes its room grow, with
    headroom for larger ones (see `_headroom`), so that a shuffled data set needs two or three programs.

    Args:
        headroom_at_first: whether the first plan has headroom as well. One that may be the only one has not.
    """

    def __init__(self, headroom_at_first: bool = False):
        self.hits = self.misses = 0
        self._headroom_at_first = headroom_at_first
        self._rooms: list[_Room] = []  # the smallest first
        self._lock = threading.RLock()

    def info(self) -> CacheInfo:
        """How many plans fitted, how many did not, and how many rooms there are."""
        return CacheInfo(self.hits, self.misses, MAX_ROOMS, len(self._rooms))

    @property
    def largest(self) -> Plan | None:
        """The plan with the most room."""
        with self._lock:
            return self._rooms[-1].plan if self._rooms else None

    def start_with(self, plan: Plan) -> None:
        """Have the sizes of a plan, such as one that was made like a saved capacity."""
        with self._lock:
            self._rooms = [_stripped(plan)]

    def plan(self, nodes: int, make: Callable[[Plan | None, bool], Plan]) -> Plan:
        """A plan of a batch of so many nodes.

        Args:
            make: plans the batch with at least the sizes of another plan, and with headroom or without.
        """
        room = self._room_for(nodes)
        if room is not None:
            plan = make(room.plan, False)
            if plan.static is room.plan.static:
                return self._fits(room, plan, nodes)
        with self._lock:  # one thread at a time makes a room larger
            found = self._room_for(nodes)
            if found is not None and found is not room:
                plan = make(found.plan, False)
                if plan.static is found.plan.static:
                    return self._fits(found, plan, nodes)
            plan = make(found and found.plan, found is not None or self._headroom_at_first)
            self.misses += 1
            if plan.static.executor == "fused":
                self._put(found, _stripped(plan, nodes))
            return plan

    def _room_for(self, nodes: int) -> _Room | None:
        """The smallest room that may be large enough, or be made so."""
        with self._lock:
            return next((room for room in self._rooms if nodes <= OUTLIER * room.nodes), None)

    def _fits(self, room: _Room, plan: Plan, nodes: int) -> Plan:
        with self._lock:
            self.hits += 1
            if nodes > room.nodes and room in self._rooms:
                self._put(room, room._replace(nodes=nodes))
        return plan

    def _put(self, old: _Room | None, new: _Room) -> None:
        kept = [room for room in self._rooms if room is not old]
        self._rooms = sorted([*kept, new], key=lambda room: room.nodes)[-MAX_ROOMS:]


def _stripped(plan: Plan, nodes: int | None = None) -> _Room:
    return _Room(replace(plan, graphs=()), plan.summary.nodes if nodes is None else nodes)
