"""`Static`: a value in a sample that Python control flow may look at."""

import dataclasses
import struct
import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def bits_key(value: Any) -> Hashable:
    """A key under which values are equal only if their types and bits are.

    Python says `1 == 1.0 == True`, `0.0 == -0.0` and `nan != nan`; none of that may decide whether two
    samples are the same program.
    """
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, tuple | list):
        return kind, tuple(map(bits_key, value))
    if isinstance(value, dict):
        return kind, tuple((bits_key(k), bits_key(v)) for k, v in value.items())
    if isinstance(value, frozenset):
        return kind, frozenset(map(bits_key, value))
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(bits_key(getattr(value, field.name)) for field in dataclasses.fields(value))
    return kind, value


class Static(Generic[T]):
    """A hashable value that is part of a sample's structure.

    Samples are recorded with their arrays abstract, so Python `if` and `for` cannot look at those. What is
    wrapped in `Static` is known while recording: an operator's name, a label that picks a branch, a length.
    Samples with different static values have different structures. Values are compared by type and bits.

    Args:
        value: any hashable.

    >>> from jitbatch import Static
    >>> Static("MAX").value
    'MAX'
    >>> Static(1) == Static(1.0), Static(0.0) == Static(-0.0), Static(float("nan")) == Static(float("nan"))
    (False, False, True)
    """

    __slots__ = ("_hash", "_key", "value")
    value: T

    def __init__(self, value: T):
        self.value = value
        try:
            hash(value)
            self._key = bits_key(value)
            self._hash = hash(self._key)
        except TypeError:
            raise TypeError(
                f"jitbatch.Static needs a hashable value, got {value!r} of type {type(value).__name__}. "
                "Turn lists into tuples; leave arrays as ordinary leaves of the sample."
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Static, (self.value,)  # hashes are different in the next process

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


# A treedef's hash ignores what its nodes hold, so samples that differ only in static values would all share
# one hash. The statics met while a sample is flattened are collected here and join its key.
_collector = threading.local()


def _flatten(static: Static[Any]) -> tuple[tuple[()], Static[Any]]:
    met = getattr(_collector, "met", None)
    if met is not None:
        met.append(static)
    return (), static


jax.tree_util.register_pytree_node(Static, _flatten, lambda static, _: static)


def flatten_with_statics(tree: Any) -> tuple[list[Any], Any, tuple[Static[Any], ...]]:
    """`jax.tree.flatten`, and the `Static` nodes met on the way in flattening order."""
    met: list[Static[Any]] = []
    _collector.met = met
    try:
        leaves, treedef = jax.tree.flatten(tree)
    finally:
        _collector.met = None
    return leaves, treedef, tuple(met)
