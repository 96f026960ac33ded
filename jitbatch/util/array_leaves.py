"""Leaves that JAX computes with: arrays, tracers and Python numbers."""

import re
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat

NUMBERS = frozenset({int, float, bool, complex})
"""The Python types that JAX treats as weakly typed scalars."""


def is_array(leaf: Any) -> bool:
    """Whether JAX can compute with a leaf: an array, a tracer or a number."""
    if isinstance(leaf, np.ma.MaskedArray):
        return False  # JAX rejects masked arrays
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUVMm" or jax.numpy.issubdtype(leaf.dtype, np.number)
    if isinstance(leaf, jax.Array) or type(leaf) in NUMBERS:
        return True
    return compat.typed_number(leaf) is not None  # JAX accepts no other subclass of a number, such as an enum


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def described(thing: Any) -> str:
    """The `repr` of an object for an error message: at most 200 characters, without memory addresses."""
    text = _ADDRESS.sub("", repr(thing))
    return text if len(text) <= 200 else f"{text[:197]}..."


def plain_aval(leaf: Any) -> Any:
    """The aval of a leaf, with its shape, dtype and weak type only."""
    aval = jax.typeof(leaf)
    return compat.make_aval(aval.shape, aval.dtype, aval.weak_type)
