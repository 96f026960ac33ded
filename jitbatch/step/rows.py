"""Rows of samples: counting them, and filling them up."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError


def count_of(samples: Any) -> int:
    """Returns the number of samples in a sequence, an array, or a pytree of arrays."""
    if isinstance(samples, Sequence) and not hasattr(samples, "_fields"):
        return len(samples)
    return np.shape(jax.tree.leaves(samples)[0])[0]


def filled(rows: Any, count: int, name: str = "samples") -> Any:
    """Fills a sequence or a pytree of arrays up to `count` rows by repeating the last one.

    Args:
        rows: the rows.
        count: the number of rows of the result.
        name: the name of the rows, for the message.
    """
    have = count_of(rows)
    if have == count:
        return rows
    if not 0 < have < count:
        raise ArgumentError(f"{name} cannot be filled up from {have} to {count} rows")
    if isinstance(rows, Sequence) and not hasattr(rows, "_fields"):
        return [*rows, *[rows[-1]] * (count - have)]
    index = np.minimum(np.arange(count), have - 1)
    return jax.tree.map(lambda leaf: leaf[index] if compat.is_tracer(leaf) else np.asarray(leaf)[index], rows)
