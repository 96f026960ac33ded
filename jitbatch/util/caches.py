"""Bounded caches with one registry.

Every cache of the library is a `Cache`, or `memoised` where a function is called too often for one. A `Cache` drops its
least recently used entries first, is safe to use from several threads, and counts its hits and misses. `clear_caches()`
empties all of them.
"""

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

from jitbatch.util import malloc

P = ParamSpec("P")
T = TypeVar("T")


class CacheInfo(NamedTuple):
    """The numbers of a cache, as `functools.lru_cache` reports them.

    Attributes:
        hits, misses: the look-ups that found an entry, and those that found none.
        maxsize, currsize: the maximal and the current number of entries.
    """

    hits: int
    misses: int
    maxsize: int
    currsize: int


_registry: "weakref.WeakSet[Cache]" = weakref.WeakSet()
_registry_lock = threading.RLock()
_at_clearing: list[Callable[[], Any]] = []


class Cache:
    """A bounded least-recently-used mapping.

    Args:
        maxsize: the maximal number of entries.
        first: the maximal number of entries at first. The limit rises to `maxsize` when a dropped entry is looked up
            again. Until then no entry has been needed twice, and more room would save nothing.
    """

    def __init__(self, maxsize: int, first: int | None = None):
        self.maxsize = maxsize
        self._first = self.room = maxsize if first is None else min(first, maxsize)
        self._dropped: dict[int, None] = {}  # hashes of the keys of dropped entries, the oldest first
        # Each entry is a key and a value. `move_to_end` finds this key by identity, without a comparison.
        self._entries: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._lock = threading.RLock()
        self._hits = self._misses = 0
        with _registry_lock:
            _registry.add(self)

    def get(self, key: Hashable) -> Any:
        """The entry for `key`, or None. It counts as a hit or a miss, and as a use of the entry."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
                if self._dropped:
                    self._note_missed(hash(key))
                return None
            self._hits += 1
            self._entries.move_to_end(found[0])
            return found[1]

    def __contains__(self, key: Hashable) -> bool:
        """Whether the cache has an entry for `key`. It counts neither as a hit or miss nor as a use of the entry."""
        return key in self._entries

    def get_all(self, keys: Iterable[Hashable]) -> list[Any]:
        """The entry for each key, None for each missing one."""
        keys = list(keys)
        with self._lock:
            found = [self._entries.get(key) for key in keys]
            for key, entry in zip(keys, found, strict=True):
                if entry is not None:
                    self._entries.move_to_end(entry[0])
                elif self._dropped:
                    self._note_missed(hash(key))
            misses = found.count(None)
            self._misses += misses
            self._hits += len(found) - misses
        return [None if entry is None else entry[1] for entry in found]

    def put(self, key: Hashable, entry: Any) -> Any:
        """Store `entry` unless the key has one already, and return the stored entry."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = (key, entry)
                self._added(entry)
            self._entries.move_to_end(found[0])
            while len(self._entries) > self.room:
                self.drop()
            return found[1]

    def drop(self) -> bool:
        """Drop the least recently used entry. Returns False if there is none."""
        with self._lock:
            if not self._entries:
                return False
            key, entry = self._entries.popitem(last=False)[1]
            self._removed(entry)
            if self.room < self.maxsize:
                self._dropped[hash(key)] = None
            while len(self._dropped) > self.maxsize:
                del self._dropped[next(iter(self._dropped))]
            return True

    def _added(self, entry: Any) -> None:
        """For subclasses: an entry was added."""

    def _removed(self, entry: Any) -> None:
        """For subclasses: an entry was removed."""

    def _note_missed(self, key_hash: int) -> None:
        if key_hash in self._dropped:
            self.room = self.maxsize
            self._dropped.clear()

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The entry for `key`. A missing entry is made by `make()`; if `make` raises, nothing is stored."""
        entry = self.get(key)
        return self.put(key, make()) if entry is None else entry

    def count(self, hits: int, misses: int = 0) -> None:
        """Add hits and misses of look-ups outside of this cache."""
        with self._lock:
            self._hits += hits
            self._misses += misses

    def discard(self, key: Hashable) -> None:
        with self._lock:
            found = self._entries.pop(key, None)
            if found is not None:
                self._removed(found[1])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter([entry for _, entry in self._entries.values()])

    def clear(self) -> None:
        with self._lock:
            for _, entry in self._entries.values():
                self._removed(entry)
            self._entries.clear()
            self._dropped.clear()
            self.room = self._first
            self._hits = self._misses = 0

    def info(self) -> CacheInfo:
        with self._lock:
            return CacheInfo(self._hits, self._misses, self.maxsize, len(self._entries))


def at_clearing(clear: Callable[[], Any]) -> None:
    """Have `clear_caches()` call `clear`, too."""
    _at_clearing.append(clear)


def memoised(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`functools.lru_cache`, which `clear_caches()` empties."""

    def decorate(fun: Callable[P, T]) -> Callable[P, T]:
        found: Any = functools.lru_cache(maxsize)(fun)
        at_clearing(found.cache_clear)
        return found

    return decorate


def clear_caches() -> None:
    """Forget every recording, cell type and compiled kernel, and give their memory back to the system.

    Results do not change; the next call of each batched function records and compiles again.

    >>> import jitbatch
    >>> jitbatch.clear_caches()
    """
    with _registry_lock:
        caches = list(_registry)
    for cache in caches:
        cache.clear()
    for clear in _at_clearing:
        clear()
    malloc.give_back()
