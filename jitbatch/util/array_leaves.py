"""Leaves that JAX computes with: arrays, tracers and Python's numbers."""

import re
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat

NUMBERS = frozenset({int, float, bool, complex})
"""Types of numbers that are arrays to JAX, of weak type."""


def is_array(leaf: Any) -> bool:
    """Whether a leaf is something JAX computes with: an array, a tracer or a number."""
    if isinstance(leaf, np.ma.MaskedArray):
        return False  # JAX refuses them
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUVMm" or jax.numpy.issubdtype(leaf.dtype, np.number)
    if isinstance(leaf, jax.Array) or type(leaf) in NUMBERS:
        return True
    return compat.typed_number(leaf) is not None  # JAX takes no other subclasses of numbers, such as enums


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def described(thing: Any) -> str:
    """What a thing is, for a message: short, and without its address."""
    text = _ADDRESS.sub("", repr(thing))
    return text if len(text) <= 200 else f"{text[:197]}..."


def plain_aval(leaf: Any) -> Any:
    aval = jax.typeof(leaf)
    return compat.make_aval(aval.shape, aval.dtype, aval.weak_type)
