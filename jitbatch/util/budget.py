"""Caches that share a limit in bytes."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from jitbatch.util.caches import Cache

Parts: TypeAlias = Iterable[tuple[Any, int]]
"""The objects that an entry keeps alive, and the approximate size of each in bytes."""


class Budget:
    """The limit in bytes for the entries of several caches. An object in several entries counts once.

    Attributes:
        most: the limit.
        used: the bytes of the current entries.
    """

    def __init__(self, most: int):
        self.most = most
        self._used = 0
        self._held: dict[int, tuple[int, int]] = {}  # by the `id` of a part: the number of its entries, and its bytes
        self._caches: weakref.WeakSet[BudgetCache] = weakref.WeakSet()
        self._gone: deque[Parts] = deque()  # parts of caches that no longer exist
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        with self._lock:
            while self._gone:
                self._release(self._gone.popleft())
            return self._used

    def add(self, cache: "BudgetCache") -> None:
        self._caches.add(cache)

    def hold(self, parts: Parts) -> None:
        with self._lock:
            for part, size in parts:
                entries, known = self._held.get(id(part), (0, size))
                self._held[id(part)] = entries + 1, known
                self._used += 0 if entries else known

    def release(self, parts: Parts) -> None:
        with self._lock:
            self._release(parts)

    def release_later(self, parts: Parts) -> None:
        """Release parts later, without waiting for a lock. The garbage collector calls this at any point of the
        program."""
        self._gone.append(parts)

    def _release(self, parts: Parts) -> None:
        for part, _ in parts:
            # After an interrupt between an entry and its parts, the parts are not counted.
            entries, size = self._held.pop(id(part), (1, 0))
            if entries > 1:
                self._held[id(part)] = entries - 1, size
            else:
                self._used -= size

    def make_room(self) -> None:
        """Drop entries until the limit holds. The next entry is always the least recently used one of the largest
        cache."""
        while self.used > self.most:
            largest = max(list(self._caches), key=len, default=None)
            if largest is None or not largest.drop():
                return


class BudgetCache(Cache):
    """A `Cache` that a `Budget` limits, too.

    Args:
        maxsize, first: as for `Cache`.
        budget: the budget.
        parts: returns the parts of an entry; the same objects in every call.
    """

    def __init__(self, maxsize: int, first: int, budget: Budget, parts: Callable[[Any], Parts]):
        super().__init__(maxsize, first)
        self._budget = budget
        self._parts = parts
        budget.add(self)

    def __del__(self) -> None:
        for _, entry in self._entries.values():
            self._budget.release_later(self._parts(entry))  # alive until then, so their `id`s are unique

    def put(self, key: Any, entry: Any) -> Any:
        entry = super().put(key, entry)
        self._budget.make_room()  # without the lock of this cache: another cache may have to drop an entry
        return entry

    def _added(self, entry: Any) -> None:
        self._budget.hold(self._parts(entry))

    def _removed(self, entry: Any) -> None:
        self._budget.release(self._parts(entry))
