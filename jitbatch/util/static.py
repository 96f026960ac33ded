"""`Static`: a value in a sample that Python control flow may read."""

import dataclasses
import struct
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jitbatch.util.caches import Cache

T = TypeVar("T")


def bits_key(value: Any) -> Hashable:
    """A key that is equal for two values only if their types and bits are equal.

    In Python, `1 == 1.0 == True`, `0.0 == -0.0` and `nan != nan`. None of that may decide whether two samples are the
    same program.
    """
    cls = type(value)
    if cls is float:
        return cls, struct.pack("<d", value)
    if cls is complex:
        return cls, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, tuple | list):
        return cls, tuple(map(bits_key, value))
    if isinstance(value, dict):
        return cls, tuple((bits_key(k), bits_key(v)) for k, v in value.items())
    if isinstance(value, frozenset):
        return cls, frozenset(map(bits_key, value))
    if isinstance(value, np.generic):
        return cls, value.dtype, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return cls, tuple(bits_key(getattr(value, field.name)) for field in dataclasses.fields(value))
    return cls, value


class Static(Generic[T]):
    """A hashable value that is part of a sample's structure.

    The arrays of a sample are abstract while it is recorded, so Python `if` and `for` cannot read them. A value in
    `Static` is known while recording: an operator's name, a label that picks a branch, a length. Samples with
    different static values have different structures. Values are compared by type and bits.

    Args:
        value: a hashable value.

    Attributes:
        value: the value.

    >>> from jitbatch import Static
    >>> Static("MAX").value
    'MAX'
    >>> Static(1) == Static(1.0), Static(0.0) == Static(-0.0), Static(float("nan")) == Static(float("nan"))
    (False, False, True)
    """

    __slots__ = ("_hash", "_interned", "_key", "value")
    value: T

    def __init__(self, value: T):
        self.value = value
        self._interned: Static[T] | None = None
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
        return self is other or (isinstance(other, Static) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Static, (self.value,)  # hashes differ between processes, so only the value is pickled

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


# A treedef's hash ignores the auxiliary data of its nodes, so samples that differ only in static values would have
# equal hashes. Flattening a sample collects its `Static` nodes here, and they become part of the sample's key.
_collector = threading.local()

_interned = Cache(65536)
"""The canonical object for each set of equal values. Treedefs and keys hold canonical objects, which compare by
identity, without a call of `Static.__eq__` for each value."""


def interned(static: Static[Any]) -> Static[Any]:
    """The canonical object that is equal to a `Static` object."""
    found = static._interned
    if found is None:
        found = static._interned = _interned.get_or_make(static, lambda: static)
    return found


def _flatten(static: Static[Any]) -> tuple[tuple[()], Static[Any]]:
    canonical = interned(static)
    met = getattr(_collector, "met", None)
    if met is not None:
        met.append(canonical)
    return (), canonical


jax.tree_util.register_pytree_node(Static, _flatten, lambda static, _: static)


def flatten_with_statics(
    tree: Any, is_leaf: Callable[[Any], Any] | None = None
) -> tuple[list[Any], Any, tuple[Static[Any], ...]]:
    """The leaves and the treedef of `jax.tree.flatten`, and the `Static` nodes in flattening order."""
    met: list[Static[Any]] = []
    _collector.met = met
    try:
        leaves, treedef = jax.tree.flatten(tree, is_leaf)
    finally:
        _collector.met = None
    return leaves, treedef, tuple(met)
