"""The compiled programs of a server, for batches of 1, 4, 16, ... samples."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plan import Plan
from jitbatch.plan.recorded import Recorded
from jitbatch.plan.rooms import Room, Rooms
from jitbatch.plan.serving import ServingPlanner


class Programs:
    """The sizes that the batches of a server share, so that a few programs run all of them.

    A batch takes the smallest program that it fits. A program is made for a number of samples with headroom for other
    samples (see `util/headroom`). A batch that fits no program is to be split, unless it is a single sample or has a
    cell type that no program has: then a program grows, which compiles.

    Args:
        planner: plans the batches.
        most: the largest number of samples of a batch.
    """

    def __init__(self, planner: ServingPlanner, most: int):
        self._planner = planner
        self.counts = counts_up_to(most)
        self._rooms: dict[int, Rooms] = {}
        self._lock = threading.RLock()

    def plan(self, batch: Recorded) -> Plan | None:
        """Plans a batch, or returns None if it has to be split."""
        count = len(batch)
        with self._lock:
            counts = [each for each in self.counts if each >= count]
            for each in counts:
                if each not in self._rooms:
                    return self._grow(each, batch)
                for room in self._current(each, batch):
                    plan = self._planner.refill(room, batch)
                    if plan is not None:
                        return plan
            if counts and (count == 1 or self._is_new(batch, counts)):
                return self._grow(counts[0], batch)
            return None

    def warm_up(self, samples: Recorded, counts: Sequence[int]) -> list[Plan]:
        """Makes programs for batches of these numbers of samples. Later batches of more samples are split.

        Each program has room for a selection of samples spread over `samples`, with headroom, and for each sample
        alone.

        Returns:
            A plan for each program.
        """
        with self._lock:
            self.counts = list(counts)
            return [self._sized(count, samples) for count in counts]

    def _sized(self, count: int, samples: Recorded) -> Plan:
        """Makes a program for batches of this number of samples, and returns a plan of such a batch."""
        order = np.argsort([graph.node_count for graph in samples.graphs], kind="stable")
        among = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
        spread = samples.some(order[among].tolist())
        known = self._current(count, samples)
        plan = known[-1] if known else self._planner.make(spread, None, count)
        structures = {structure.key: index for index, structure in enumerate(samples.structures)}
        for batch in (spread, *(samples.some([index]) for index in structures.values())):
            if self._planner.refill(plan, batch) is None:
                plan = self._planner.make(batch, plan, count if batch is spread else 0)
        if plan.static.program.sizes is None:
            return plan
        nodes = sum(graph.node_count for graph in spread.graphs) * count // len(among)
        self._rooms[count] = Rooms(True, [Room(replace(plan, graphs=()), nodes)])
        return self._planner.refill(plan, spread) or plan

    def __len__(self) -> int:
        return sum(len(list(rooms)) for rooms in list(self._rooms.values()))

    def _current(self, count: int, batch: Recorded) -> list[Plan]:
        """Returns the plans of programs for this number of samples. After `clear_caches()` there is none."""
        likes = [room.like for room in self._rooms.get(count, ())]
        return [like for like in likes if isinstance(like, Plan) and like.static.tables is batch.context.tables]

    def _is_new(self, batch: Recorded, counts: Sequence[int]) -> bool:
        """Whether every program lacks a kind of node of the batch, or an edge between kinds."""
        profiles = [like.sizes.profile for count in counts for like in self._current(count, batch)]
        return all(profile.union(batch.graphs) != profile for profile in profiles)

    def _grow(self, count: int, batch: Recorded) -> Plan:
        """Makes a program with room for a batch, and for other batches of this number of samples."""
        nodes = sum(graph.node_count for graph in batch.graphs)

        def make(like: Plan | Capacity | None, has_headroom: bool) -> Plan:
            return self._planner.make(batch, like, count if has_headroom else 0)

        rooms = self._rooms.setdefault(count, Rooms(headroom_at_first=True))
        return rooms.plan(nodes, make)


def counts_up_to(most: int) -> list[int]:
    """Returns 1, 4, 16, ..., and the largest number of samples of a batch.

    >>> counts_up_to(50)
    [1, 4, 16, 50]
    """
    return [*(4**i for i in range(16) if 4**i < most), most]
