"""The input rows of a batch: the leaves of all samples by value class, with equal rows merged."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class InputRows:
    """The input rows of samples, by value class.

    The constructor reads contiguous NumPy arrays of the right dtype. For a class with any other leaf (a number, a JAX
    array, a key) the caller must `put` an array of all its rows, or call `put_opaque` if their bits are not available.

    Args:
        samples: for each sample, pairs of a value class and the arrays with its rows of that class.
        classes: for each value class the kind of its dtype ("f", "i", ...; "" if the caller must `put` its rows), its
            itemsize, and the size of a row in bytes.

    Attributes:
        unread: the value classes that the caller must `put`, ascending.
    """

    def __init__(self, samples: Sequence[Any], classes: Sequence[tuple[str, int, int]]):
        self._row_bytes = {class_id: size for class_id, (_, _, size) in enumerate(classes)}
        self._content: dict[int, bytes | None] = {}
        self._distinct: dict[int, list[bytes] | int] = {}
        arrays: dict[int, list[Any]] = {}
        for sample in samples:
            for class_id, leaves in sample:
                arrays.setdefault(class_id, []).extend(leaves)
        self.unread: list[int] = []
        for class_id, leaves in sorted(arrays.items()):
            kind, itemsize, _ = classes[class_id]
            if all(_is_readable(leaf, kind, itemsize) for leaf in leaves):
                self._content[class_id] = b"".join(leaf.tobytes() for leaf in leaves)
            else:
                self.unread.append(class_id)

    def put(self, class_id: int, rows: np.ndarray) -> None:
        """Set all rows of a class. Merging compares their bits."""
        self._row_bytes[class_id] = rows[:1].nbytes
        self._content[class_id] = np.ascontiguousarray(rows).tobytes()

    def put_opaque(self, class_id: int) -> None:
        """Mark the rows of a class as not comparable: merging keeps all of them."""
        self._content[class_id] = None

    def merge(self, class_id: int, count: int, dedupe: bool) -> list[int]:
        """The index of the distinct row of each of the `count` rows of a class. `dedupe` merges equal rows."""
        content, size = self._content.get(class_id, b""), self._row_bytes[class_id]
        if content is None:
            self._distinct[class_id] = count
            return list(range(count))
        if len(content) != count * size:
            raise ValueError(f"{count} rows of class {class_id} have {count * size} bytes, not {len(content)}")
        rows = [content[row * size : (row + 1) * size] for row in range(count)]
        if not dedupe:
            self._distinct[class_id] = rows
            return list(range(count))
        which: dict[bytes, int] = {}
        row_ids = [which.setdefault(row, len(which)) for row in rows]
        self._distinct[class_id] = list(which)
        return row_ids

    def count(self, class_id: int) -> int:
        """The number of distinct rows of a class after `merge`."""
        rows = self._distinct.get(class_id, 0)
        return rows if isinstance(rows, int) else len(rows)

    def write(self, class_id: int, out: np.ndarray) -> None:
        """Write the distinct rows of a class to `out`, followed by zeros."""
        rows = self._distinct[class_id]
        if isinstance(rows, int) or len(rows) * self._row_bytes[class_id] > out.nbytes:
            raise ValueError(f"the rows of class {class_id} cannot be written here")
        content = b"".join(rows)
        out.view(np.uint8).reshape(-1)[:] = np.frombuffer(content.ljust(out.nbytes, b"\0"), np.uint8)


def _is_readable(leaf: Any, kind: str, itemsize: int) -> bool:
    if type(leaf) is not np.ndarray or not leaf.flags.c_contiguous or not leaf.dtype.isnative:
        return False
    return (leaf.dtype.kind, leaf.dtype.itemsize) == (kind, itemsize)
