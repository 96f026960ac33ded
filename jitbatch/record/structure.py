"""Structures: the leaves of a sample, and a key that is equal for samples with one program."""

import functools
import itertools
import operator
import sys
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat
from jitbatch.util.array_leaves import NUMBERS, described, is_array
from jitbatch.util.errors import SampleError
from jitbatch.util.key_order import TooManyParts, flatten_in_order

_NUMBER = {kind: kind for kind in NUMBERS}
_is_none = functools.partial(operator.is_, None)


_jax_arrays: "weakref.WeakSet[type]" = weakref.WeakSet()
"""JAX's array classes. Calling JAX's check for each leaf would take longer than all other work of this module."""


def describe_leaf(leaf: Any) -> Hashable:
    """The type of an array leaf, as part of a key. None for other leaves."""
    kind = type(leaf)
    if kind in NUMBERS:
        return kind
    if kind is np.ndarray and leaf.dtype.kind in "fiub":
        return leaf.shape, leaf.dtype, False
    if kind in _jax_arrays or isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type
    if not is_array(leaf):
        return None
    if not hasattr(leaf, "shape"):
        return compat.typed_number(leaf)
    if isinstance(leaf, jax.Array) and hasattr(leaf, "weak_type"):  # typed keys have no weak type
        _jax_arrays.add(kind)
    return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)


def aval_of(leaf: Any) -> Any:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return compat.make_aval(
        aval.shape, jax.dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True), aval.weak_type
    )


MOST_PARTS = 2**20
"""The largest number of parts of a sample as a tree, including its leaves."""


def _is_flat(sample: tuple[Any, ...]) -> bool:
    """Whether a sample has no nested containers."""
    return all(type(part) in _ARRAYS or type(part) in _jax_arrays for part in sample)


_ARRAYS = NUMBERS | {np.ndarray}


class StructureKey(tuple[Any, ...]):
    """The key of a structure. Its hash is computed once, because each new sample looks it up several times."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = super().__hash__()
            return self._hash


class Structure:
    """A flattened sample.

    Attributes:
        sample: the sample.
        leaves: its leaves.
        arrays: the leaves that are not numbers.
        key: equal for samples with the same program.
    """

    __slots__ = ("arrays", "key", "leaves", "sample")

    def __init__(self, sample: tuple[Any, ...], index: int, names: Sequence[str], has_data: bool = True):
        try:
            self.leaves, tree, statics = flatten_in_order(sample, None if _is_flat(sample) else MOST_PARTS)
        except TooManyParts:
            raise SampleError(
                f"sample {index} is a tree of more than {MOST_PARTS:,} parts. A part that is referred to from several "
                "places counts in each of them: JAX knows trees alone. If parts are shared, as in `t = (t, t)`, number "
                "them, and give the sample as arrays of these numbers; the function then computes each part once"
            ) from None
        except (RecursionError, SystemError) as error:
            raise SampleError(
                f"sample {index} is nested too deeply: Python's recursion limit is {sys.getrecursionlimit()}, and "
                "jax.tree.flatten has to stay below it. Raise the limit with sys.setrecursionlimit, or hold the sample "
                "as arrays of nodes instead of nested containers"
            ) from error
        # Samples have many numbers. They are separated from arrays without a Python loop.
        numbers = tuple(map(_NUMBER.get, map(type, self.leaves)))
        self.arrays = list(itertools.compress(self.leaves, map(_is_none, numbers))) if None in numbers else []
        others = tuple(map(describe_leaf, self.arrays))
        if None in others or (has_data and jax.ShapeDtypeStruct in map(type, self.arrays)):
            raise _leaf_error(sample, index, names)
        self.key = StructureKey((tree, statics, numbers, others))
        self.sample = sample


_named_tuples: "weakref.WeakKeyDictionary[type, bool]" = weakref.WeakKeyDictionary()


def is_named_tuple(kind: type, part: tuple[Any, ...]) -> bool:
    """Whether JAX flattens instances of a class as named tuples. A class can also register its own way."""
    found = _named_tuples.get(kind)
    if found is None:
        items, treedef = jax.tree.flatten(part, is_leaf=lambda item: item is not part)
        found = len(items) == len(part) and all(map(operator.is_, items, part)) and treedef.node_data() == (kind, None)
        _named_tuples[kind] = found
    return found


def described_leaves(structure: Any) -> Iterator[Any]:
    """The result of `describe_leaf` for each leaf of samples with this key."""
    _, _, numbers, others = structure
    remaining = iter(others)
    return (next(remaining) if number is None else number for number in numbers)


def _leaf_error(sample: tuple[Any, ...], index: int, names: Sequence[str]) -> SampleError:
    for path, leaf in jax.tree_util.tree_flatten_with_path(sample)[0]:
        if describe_leaf(leaf) is None or isinstance(leaf, jax.ShapeDtypeStruct):
            place = f"{names[path[0].idx]}[{index}]{jax.tree_util.keystr(path[1:])}"
            return SampleError(f"sample {index}: {place} is {described(leaf)} of type {_what_is_wrong(leaf)}")
    raise AssertionError("no leaf is at fault")


def _what_is_wrong(leaf: Any) -> str:
    """The type of a leaf that is not an array, and a remedy, for errors."""
    name = type(leaf).__name__
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return (
            f"{name}, which has no data. A plan holds the data of its samples: give arrays (only shared arguments may "
            "be shapes and dtypes). To make room for such samples, plan zeros: `jnp.zeros(s.shape, s.dtype)`"
        )
    if isinstance(leaf, np.ma.MaskedArray):
        return f"{name}, which JAX does not take: give `x.filled(...)`, and `x.mask` as an array beside it"
    if isinstance(leaf, np.ndarray | np.generic):
        return (
            f"{name} with dtype {leaf.dtype}, which is not an array or a number that JAX computes with. Give numbers "
            "or bools, or wrap in jitbatch.Static(...) whatever Python code is to look at"
        )
    register = "register its class with jax.tree_util.register_dataclass if it holds arrays, "
    return (
        f"{name}, which is not an array or a number. Wrap it in jitbatch.Static(...) if Python code is to look at it, "
        f"{'' if isinstance(leaf, str | bytes) else register}or leave it out of the sample"
    )
