"""Agreement: the processes of a program plan their own samples, and agree on the sizes of one program.

Each process plans with the terms of the previous minibatch. If all plans fit, no process sends a message. If a plan
does not fit, its process sends a capacity, as data. All processes read the messages, and unite the capacities in the
order of processes. Then each process plans with the united capacity, and sends a digest of the sizes of its plan. If
the digests are equal, these sizes are the new terms. So messages grow with the number of processes, not with its
square.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plan import Plan
from jitbatch.plan.rooms import Room
from jitbatch.plan.saved.values import CHANGED
from jitbatch.step.channel import Channel, Message, described
from jitbatch.step.examples import example
from jitbatch.step.places import Place
from jitbatch.step.rows import count_of, filled
from jitbatch.step.samples import Use
from jitbatch.step.split import Parts
from jitbatch.util.errors import PlanError, ProcessError

MAX_ROUNDS = 8
"""The limit of rounds for a minibatch. Three are enough in all known cases: counts, capacities, and a check."""

Like = Plan | Capacity
RoomKey = tuple[str, int]


@dataclass(frozen=True)
class Terms:
    """The sizes that the processes have agreed on.

    Attributes:
        counts: for each place of samples, the number of samples of each process.
        rooms: for each use, by name, and each number of samples of a shard: a plan with the sizes that were agreed on,
            or a capacity that was united and is still to be tried.
        disputed: the rooms whose capacity was tried, and in which the plans of processes have different sizes.
    """

    counts: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)
    rooms: Mapping[RoomKey, Like] = field(default_factory=dict)
    disputed: frozenset[RoomKey] = frozenset()

    def with_said(self, said: Mapping[int, Mapping[str, Any]], processes: Sequence[int]) -> "Terms":
        """Returns the terms that follow from these and from the messages of the processes. They are equal in all
        processes."""
        counts = {str(place): list(own) for place, own in self.counts.items()}
        rooms: dict[RoomKey, Like] = dict(self.rooms)
        digests: dict[RoomKey, set[str]] = {}
        for process, content in said.items():
            for place, count in content.get("counts", {}).items():
                counts.setdefault(place, [0] * len(processes))[processes.index(process)] = count
            for name, size, text in content.get("capacities", ()):
                capacity, known = Capacity.from_json(text), rooms.get((name, size))
                known = known.capacity if isinstance(known, Plan) else known
                rooms[name, size] = capacity if known is None else known | capacity
            for name, size, digest in content.get("digests", ()):
                digests.setdefault((name, size), set()).add(digest)
        disputed = frozenset(key for key, found in digests.items() if len(found) > 1)
        return Terms({Place.parse(place): tuple(own) for place, own in counts.items()}, rooms, disputed)


class Planned(NamedTuple):
    """A minibatch of all processes, with the plans of this process.

    Attributes:
        parts: the parts of the samples at each place.
        plans: the plan of each use of them.
        terms: the terms of this minibatch; None in a program of one process.
    """

    parts: Mapping[Place, Parts]
    plans: Mapping[Place, list[Plan]]
    terms: Terms | None


@dataclass
class Agreement:
    """Plans a sequence of minibatches.

    Attributes:
        channel: the channel to the other processes.
        terms: the terms of the previous minibatch.
        parts_of: returns the parts of the samples of all processes.
    """

    channel: Channel
    terms: Terms
    parts_of: Callable[[tuple[int, ...]], Parts]

    def plan(self, samples: Mapping[Place, Any], uses: Mapping[Place, Sequence[Use]]) -> Planned:
        """Plans samples of this process, with sizes for all processes.

        Raises:
            ProcessError: in all processes, if one of them raises an exception.
        """
        for _ in range(MAX_ROUNDS):
            failure: Exception | None = None
            planned: Planned | None = None
            content: dict[str, Any] = {}
            try:
                planned, content = self._attempt(samples, uses)
            except Exception as error:
                failure = self._explained(error)
            message = Message(content, described(failure) if failure else "") if content or failure else None
            try:
                said = self.channel.exchange(message)
            except ProcessError as error:
                raise (failure or error) from (None if failure else error.__cause__)
            terms = self.terms.with_said(said, self.channel.processes)
            is_tried = all(content.keys() == {"digests"} for content in said.values())
            if planned is not None and planned.terms is not None and is_tried and not terms.disputed:
                self.terms = planned.terms
                return planned
            self.terms = terms
        raise ProcessError(
            "the processes found no sizes that all of their plans have. Samples of all processes must be of one kind"
        )

    def _attempt(
        self, samples: Mapping[Place, Any], uses: Mapping[Place, Sequence[Use]]
    ) -> tuple[Planned | None, dict[str, Any]]:
        """Plans with the current terms.

        Returns:
            The plans, or None if they do not fit; and the message to the other processes.
        """
        me = self.channel.processes.index(jax.process_index())
        counts = {place: count_of(value) for place, value in samples.items()}
        agreed = self.terms.counts
        if any(place not in agreed or agreed[place][me] != count for place, count in counts.items()):
            return None, {"counts": {str(place): count for place, count in counts.items()}}
        if not any(any(agreed[place]) for place in samples):
            raise PlanError("no process has samples: leave minibatches without samples out")
        parts = {place: self.parts_of(agreed[place]) for place in samples}
        attempt = _Attempt(self.terms, dict(self.terms.rooms))
        plans = {place: [attempt.plan(use, samples, parts) for use in own] for place, own in uses.items()}
        content = {"capacities": attempt.capacities, "digests": attempt.digests}
        content = {name: found for name, found in content.items() if found}
        if not attempt.fits:
            return None, content or {"capacities": []}
        return Planned(parts, plans, Terms(agreed, attempt.rooms)), content  # type: ignore[arg-type]

    def _explained(self, error: Exception) -> Exception:
        is_of_others = isinstance(error, PlanError) and CHANGED in str(error)
        if not is_of_others:
            return error
        return ProcessError(
            f"the cells of process {jax.process_index()} are not those that other processes say ({error}). All "
            "processes must run the same code on the same versions, with the same dtypes"
        )


@dataclass
class _Attempt:
    """Plans one minibatch with terms.

    Attributes:
        terms: the terms.
        rooms: the rooms after the attempt.
        capacities, digests: the content of the message for each room: its key, and a capacity or a digest.
        fits: whether all plans may be used, if the other processes send the same digests.
    """

    terms: Terms
    rooms: dict[RoomKey, Like]
    capacities: list[Any] = field(default_factory=list)
    digests: list[Any] = field(default_factory=list)
    fits: bool = True

    def plan(self, use: Use, samples: Mapping[Place, Any], parts: Mapping[Place, Parts]) -> Plan | None:
        first = parts[use.places[0]]
        key = use.name, first.size
        like = self.rooms.get(key) or _last(use.saved.get(first.size, ()))
        full = _filled(use, samples, parts, like)
        if full is None:
            self.fits = False  # other processes have samples, and send their capacity
            return None
        is_tried = isinstance(like, Capacity) and key not in self.terms.disputed
        plan, fits = use.plan_like(full, like, len(first.split.mine), has_headroom=not is_tried)
        if is_tried:
            self.digests.append([*key, digest_of(plan.capacity)])
        elif not fits:
            self.capacities.append([*key, plan.capacity.to_json()])
            self.fits = False
            return None
        self.rooms[key] = like if fits and isinstance(like, Plan) else replace(plan, graphs=())
        return plan


def digest_of(capacity: Capacity) -> str:
    """Returns a digest of the sizes of a program. Kinds and edges do not count: programs of equal sizes may serve more
    kinds."""
    sizes = (
        capacity.nodes, sorted(capacity.terms), capacity.inputs, capacity.shared, sorted(map(repr, capacity.loops)),
        capacity.items, capacity.granularity,
    )  # fmt: skip
    return hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]


def _last(rooms: Sequence[Room]) -> Like | None:
    """Returns the largest of saved rooms."""
    return rooms[-1].like if rooms else None


def _filled(
    use: Use, samples: Mapping[Place, Any], parts: Mapping[Place, Parts], like: Like | None
) -> dict[Place, Any] | None:
    """Returns the samples of a use, filled up to the rows of this process. A process without samples gets examples
    from `like`; the result is None if there is no `like` yet."""
    if all(count_of(samples[place]) for place in use.places):
        return {place: filled(samples[place], parts[place].local_rows) for place in use.places}
    if like is None:
        return None
    capacity = like.capacity if isinstance(like, Plan) else like
    rows = zip(use.places, example(capacity), strict=True)
    return {place: [part] * parts[place].local_rows for place, part in rows}
