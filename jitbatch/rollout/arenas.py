"""The arenas of samples in flight: one array of rows for each value class. Programs update the arenas in place.

Rows are allocated one after the other. When an arena is full, the rows in use move to its beginning. The arena grows
only if too many rows are in use. Row 0 of each arena is zeros. The other rows are pinned rows and rows of samples, in
any order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.batch.inputs import pad_rows, wrap_keys
from jitbatch.execute.segments import gather
from jitbatch.ir.tables import Tables
from jitbatch.util import compat

BYTES = 1 << 24
"""The initial size of an arena, within `LEAST_ROWS` and `MOST_ROWS`."""

LEAST_ROWS, MOST_ROWS = 1 << 10, 1 << 16

TRANSFERS = ((1 << 12, (1024, 64)), (1 << 62, (64, 4)))
"""For values of up to this number of bytes, the numbers of rows in one transfer. There are few numbers, so that all
transfers are compiled soon."""


class Arenas:
    """The arenas of a flight.

    Attributes:
        arrays: the arena of each value class.
        free: the first free row of each arena.
    """

    def __init__(self, tables: Tables):
        self.arrays: dict[int, Any] = {}
        self.free: dict[int, int] = {}
        self._tables = tables
        self._was_read: set[int] = set()

    def add(self, classes: Sequence[int]) -> None:
        """Add the missing arenas of these value classes."""
        for class_id in classes:
            if class_id not in self.arrays:
                value_class = self._tables.classes[class_id]
                rows = BYTES // max(value_class.nbytes, 1)
                capacity = min(max(1 << rows.bit_length(), LEAST_ROWS), MOST_ROWS)
                arena = jnp.zeros((capacity, *value_class.shape), value_class.dtype)
                self.arrays[class_id] = _moved(arena, np.arange(capacity, dtype=np.int32))  # compiled now, not later
                self.free[class_id] = 1

    def clear(self) -> None:
        """Forget all rows."""
        self.free = dict.fromkeys(self.arrays, 1)

    def take(self, class_id: int, count: int) -> int:
        """Allocate `count` consecutive rows, and return the first."""
        start = self.free[class_id]
        self.free[class_id] += count
        return start

    def has_room(self, class_id: int, count: int) -> bool:
        """Whether there are `count` free rows, and enough for the padding of the widest write."""
        return self.free[class_id] + count + self._spare(class_id) <= len(self.arrays[class_id])

    def are_few(self, needed: Mapping[int, int]) -> bool:
        """Whether these numbers of rows, by value class, take at most half of each arena."""
        return all(2 * count <= len(self.arrays[class_id]) for class_id, count in needed.items())

    def _spare(self, class_id: int) -> int:
        return max(256, self._sizes(class_id)[0])

    def move(self, class_id: int, live: np.ndarray, count: int) -> None:
        """Move the rows in use to the beginning of an arena, and make room for more rows.

        Args:
            class_id: the value class.
            live: the rows in use, ascending; 0 is the first. They move to the rows `0, 1, ...`.
            count: the number of rows that must be free afterwards.
        """
        arena = self.arrays[class_id]
        capacity = len(arena)
        rows = np.zeros(capacity, np.int32)
        rows[: len(live)] = live
        arena = _moved(arena, rows)
        self.free[class_id] = len(live)
        needed = len(live) + count + self._spare(class_id)
        while capacity < 2 * needed and capacity < needed + len(live):
            capacity *= 2
        if capacity > len(arena):
            value_class = self._tables.classes[class_id]
            more = jnp.zeros((capacity - len(arena), *value_class.shape), value_class.dtype)
            arena = jnp.concatenate([arena, more])
            arena = _moved(arena, np.arange(capacity, dtype=np.int32))
        self.arrays[class_id] = arena

    # Reading and writing

    def _sizes(self, class_id: int) -> tuple[int, ...]:
        nbytes = self._tables.classes[class_id].nbytes
        return next(sizes for most, sizes in TRANSFERS if nbytes <= most)

    def write(self, class_id: int, rows: np.ndarray) -> int:
        """Write rows, and return the first of them. Keys are written as their key data."""
        value_class = self._tables.classes[class_id]
        first = self.take(class_id, len(rows))
        for begin, size in _pieces(len(rows), self._sizes(class_id)):
            piece = pad_rows(rows[begin : begin + size], size)
            if value_class.is_key:
                piece = wrap_keys(piece, compat.key_named(str(value_class.dtype)))
            self.arrays[class_id] = _written(self.arrays[class_id], piece, np.int32(first + begin))
        return first

    def read(self, class_id: int, rows: np.ndarray) -> Any:
        """Rows as a NumPy array. Keys are a JAX array."""
        if class_id not in self._was_read:
            self._was_read.add(class_id)
            for size in self._sizes(class_id):  # compiled now: the next read may have another number of rows
                _taken(self.arrays[class_id], np.zeros(size, np.int32))
        parts = []
        for begin, size in _pieces(len(rows), self._sizes(class_id)):
            some = rows[begin : begin + size]
            padded = np.zeros(size, np.int32)
            padded[: len(some)] = some
            part = _taken(self.arrays[class_id], padded)
            parts.append((part if self._tables.classes[class_id].is_key else np.asarray(part))[: len(some)])
        if len(parts) == 1:
            return parts[0]
        return jnp.concatenate(parts) if self._tables.classes[class_id].is_key else np.concatenate(parts)

    def run(self, program: Any, buffer: np.ndarray, shared: Mapping[int, Any], classes: Iterable[int]) -> None:
        """Run a program on the arenas of these value classes."""
        self.arrays.update(program({c: self.arrays[c] for c in classes}, buffer, shared))


def _pieces(count: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """The start and the size of each piece, for `count` rows in pieces of these sizes."""
    pieces, begin = [], 0
    while begin < count:
        size = next((size for size in sizes if 2 * (count - begin) > size), sizes[-1])
        pieces.append((begin, size))
        begin += size
    return pieces


@jax.jit
def _taken(arena: Any, rows: Any) -> Any:
    return gather(arena, rows)


def _write(arena: Any, rows: Any, first: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(arena, rows, first, 0)


_written: Callable[..., Any] = jax.jit(_write, donate_argnums=0)


def _move(arena: Any, rows: Any) -> Any:
    return gather(arena, rows)


_moved: Callable[..., Any] = jax.jit(_move)
