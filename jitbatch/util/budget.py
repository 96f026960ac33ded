"""Caches that share a limit in bytes."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from jitbatch.util.caches import Cache

Parts: TypeAlias = Iterable[tuple[Any, int]]
"""The objects that an entry keeps alive, and about how many bytes each of them takes."""


class Budget:
    """The bytes that the entries of some caches may take together. What several entries keep alive counts once.

    Attributes:
        most: the limit.
        used: the bytes of the entries at present.
    """

    def __init__(self, most: int):
        self.most = most
        self._used = 0
        self._held: dict[int, tuple[int, int]] = {}  # by the `id` of a part: the number of its entries, and its bytes
        self._caches: weakref.WeakSet[BudgetCache] = weakref.WeakSet()
        self._gone: deque[Parts] = deque()  # of caches that are gone
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
        """Release parts where no lock may be waited for: the garbage collector runs in the middle of anything."""
        self._gone.append(parts)

    def _release(self, parts: Parts) -> None:
        for part, _ in parts:
            # An interrupt may have come between an entry and its parts: then they are not held.
            entries, size = self._held.pop(id(part), (1, 0))
            if entries > 1:
                self._held[id(part)] = entries - 1, size
            else:
                self._used -= size

    def make_room(self) -> None:
        """Drop entries until the limit holds: always the least recently used one of the cache with the most."""
        while self.used > self.most:
            largest = max(list(self._caches), key=len, default=None)
            if largest is None or not largest.drop():
                return


class BudgetCache(Cache):
    """A `Cache` that is limited by a `Budget`, too.

    Args:
        maxsize, first: as for `Cache`.
        budget: the budget.
        parts: from an entry to its parts; the same objects whenever it is called.
    """

    def __init__(self, maxsize: int, first: int, budget: Budget, parts: Callable[[Any], Parts]):
        super().__init__(maxsize, first)
        self._budget = budget
        self._parts = parts
        budget.add(self)

    def __del__(self) -> None:
        for _, entry, _ in self._entries.values():
            self._budget.release_later(self._parts(entry))  # they live until they are released: no other has their `id`

    def put(self, key: Any, entry: Any, mark: int | None = None) -> Any:
        entry = super().put(key, entry, mark)
        self._budget.make_room()  # without the lock of this cache: another one may have to drop an entry
        return entry

    def _added(self, entry: Any) -> None:
        self._budget.hold(self._parts(entry))

    def _removed(self, entry: Any) -> None:
        self._budget.release(self._parts(entry))
