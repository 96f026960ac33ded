"""The result of tracing a step: the arguments that hold samples, and the calls of `.batch` that use them."""

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from jitbatch.plan.plan import Plan
from jitbatch.record.structure import describe_leaf
from jitbatch.step.capacity import SavedRoom, StepCapacity
from jitbatch.step.places import Bound, Place
from jitbatch.step.samples import Use
from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.caches import CacheInfo

MAX_ARRANGEMENTS = 16
"""The number of argument kinds (static values, shapes, dtypes) for which a step stores an `Arrangement`."""


class Arrangement(NamedTuple):
    """The samples of a step and their uses, for one kind of arguments.

    Attributes:
        kind: the kind of arguments (see `kind_of`).
        places: the places of the samples in the arguments.
        uses: the calls of `.batch` on these samples.
    """

    kind: Hashable
    places: tuple[Place, ...]
    uses: tuple[Use, ...]


class Arrangements:
    """The arrangements of one step, the newest first.

    Attributes:
        uses: all uses of the step, by their keys.
    """

    def __init__(self, places: tuple[Place, ...], kind_of: Callable[[Bound, Iterable[Place]], Hashable]):
        """
        Args:
            places: the places of samples that the step names.
            kind_of: returns the kind of a call's arguments, without the samples at some places.
        """
        self.uses: dict[Hashable, Use] = {}
        self.unknown = Arrangement(None, places, ())
        self._kind_of = kind_of
        self._found: list[Arrangement] = []
        self._saved = StepCapacity()
        self._lock = threading.RLock()

    @property
    def newest(self) -> Arrangement | None:
        with self._lock:
            return self._found[0] if self._found else None

    def holds(self, arrangement: Arrangement) -> bool:
        with self._lock:
            return arrangement in self._found

    def of(self, call: Bound) -> Arrangement:
        """Returns the arrangement of a call; the newest one for arguments of a new kind."""
        with self._lock:
            if not self._found:
                return self.unknown
            if len(self._found) == 1:
                return self._found[0]
            kind = self._kind_of(call, self._places())
            return next((found for found in self._found if found.kind == kind), self._found[0])

    def learn(self, met: Mapping[Hashable, Use], call: Bound) -> Arrangement:
        """Stores and returns the arrangement of a call. `met` are the uses that its trace met, by their keys."""
        with self._lock:
            uses = tuple(self.uses.get(key) or self._named(key, use) for key, use in met.items())
            places = dict.fromkeys((*self.unknown.places, *(place for use in uses for place in use.places)))
            learned = Arrangement(self._kind_of(call, self._places().union(places)), tuple(places), uses)
            others = [found for found in self._found if found.kind != learned.kind]
            self._found = [learned, *others][:MAX_ARRANGEMENTS]
        return learned

    def _places(self) -> set[Place]:
        return {place for found in self._found for place in found.places}

    def _named(self, key: Hashable, use: Use) -> Use:
        """Stores and returns a new use, with a name and the rooms that were saved under this name."""
        places = ", ".join(map(str, use.places))
        name = f"{use.function.__module__}.{use.function.__qualname__}({places})"
        same = sum(other.name.partition(" #")[0] == name for other in self.uses.values())
        name += f" #{same + 1}" if same else ""
        use = self.uses[key] = replace(use, name=name, saved=self._saved.of(name))
        return use

    # Sizes

    def capacity(self) -> StepCapacity:
        """Returns the sizes of all uses, including saved sizes of uses that the step has not traced yet."""
        with self._lock:
            found = [
                SavedRoom(use.name, count, room.nodes, room.like.capacity if isinstance(room.like, Plan) else room.like)
                for use in self.uses.values()
                for count, rooms in sorted(use.rooms.items())
                for room in rooms
            ]
            names = {use.name for use in self.uses.values()}
            return StepCapacity((*found, *(room for room in self._saved.rooms if room.use not in names)))

    def restore(self, capacity: StepCapacity) -> bool:
        """Takes saved sizes for uses to come. If the step has uses already, it changes nothing and returns False."""
        with self._lock:
            if self.uses:
                return False
            self._saved = capacity
            return True

    def rooms_info(self) -> CacheInfo:
        """Returns the hits and misses of the rooms of all uses."""
        infos = [rooms.info() for use in list(self.uses.values()) for rooms in list(use.rooms.values())]
        return CacheInfo(*(sum(info[field] for info in infos) for field in range(4)))


def kind_of(arguments: Mapping[str, Any], static: Iterable[str]) -> Hashable:
    """Returns the kind of a call's arguments: static values, and the tree, shapes and dtypes of the others.

    Calls of one kind are expected to have the same uses.
    """
    names = dict.fromkeys(static)
    fixed = tuple((name, _hashable(arguments[name])) for name in names if name in arguments)
    leaves, tree = jax.tree.flatten({name: value for name, value in arguments.items() if name not in names})
    return tree, tuple(map(_kind_of_leaf, leaves)), fixed


def _kind_of_leaf(leaf: Any) -> Hashable:
    if type(leaf) in NUMBERS and type(leaf) is not bool:
        return type(leaf)
    described = describe_leaf(leaf)
    return (type(leaf), _hashable(leaf)) if described is None or type(leaf) is bool else described


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
