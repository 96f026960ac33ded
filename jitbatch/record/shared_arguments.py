"""The shared arguments of a call: their array leaves, and a key for all other parts."""

import copy
import itertools
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import jax

from jitbatch.ir.cell import Identity
from jitbatch.record.arguments import Arguments
from jitbatch.record.structure import aval_of, describe_leaf
from jitbatch.util.errors import ArgumentError
from jitbatch.util.key_order import Orders, orders_of, structure, with_orders
from jitbatch.util.platforms import platform_of
from jitbatch.util.static import bits_key, flatten_with_statics


class SharedArguments:
    """The shared arguments of a call: their array leaves, and a key for all other parts.

    Functions and other leaves that are not arrays (the activation in an Equinox module) belong to the key. The order of
    keys in dicts does not belong to it. The order affects the recording, but a program finds its leaves in every order.
    """

    def __init__(self, shared: tuple[Any, ...]):
        leaves, treedef, statics = flatten_with_statics(shared)
        described = [describe_leaf(leaf) for leaf in leaves]
        fixed = tuple(None if d is not None else _fixed_key(leaf) for d, leaf in zip(described, leaves, strict=True))
        self.leaves = [leaf for leaf, d in zip(leaves, described, strict=True) if d is not None]
        self.described = [d for d in described if d is not None]
        self.key = (treedef, statics, tuple(described), fixed)
        self.part_types = list(map(type, shared))
        self._all = leaves
        self._treedef = treedef
        self._shared: tuple[Any, ...] | None = shared

    def with_values(self, shared: tuple[Any, ...], leaves: list[Any]) -> "SharedArguments":
        """Shared arguments with this key and other leaves, which are all arrays."""
        other = object.__new__(SharedArguments)
        other.leaves = other._all = leaves
        other.described, other.key, other._treedef = self.described, self.key, self._treedef
        other.part_types = list(map(type, shared))
        other._shared = shared
        return other

    def in_order(self, orders: Orders) -> "SharedArguments":
        """These arguments with another order of keys."""
        other = copy.copy(self)
        vars(other).pop("trees", None)
        other.orders = orders
        return other

    @cached_property
    def orders(self) -> Orders:
        """The order of keys in dicts (see `util/key_order`)."""
        return orders_of(self._shared, self._treedef)

    @cached_property
    def trees(self) -> Sequence[Any]:
        """The tree of each argument."""
        return list(map(structure, self.rebuild(self.leaves))) if self.orders else self._treedef.children()

    def rebuild(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        remaining = iter(arrays)
        fixed = self.key[3]
        leaves = [next(remaining) if f is None else leaf for f, leaf in zip(fixed, self._all, strict=True)]
        return with_orders(self._treedef, self.orders).unflatten(leaves)

    @cached_property
    def platform(self) -> str:
        """The platform that these arguments are on."""
        return platform_of(self.leaves)

    def without_values(self, platform: str | None = None) -> "SharedArguments":
        """These arguments, with shapes and dtypes in place of arrays, and with the platform that they will be on."""
        abstract = self.in_order(self.orders)
        vars(abstract).pop("platform", None)
        if platform is not None:
            abstract.platform = platform
        abstract._shared = None
        avals = map(aval_of, self.leaves)
        abstract.leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
        remaining = iter(abstract.leaves)
        abstract._all = [next(remaining) if f is None else leaf for f, leaf in zip(self.key[3], self._all, strict=True)]
        return abstract

    def check_data(self, call: Arguments) -> None:
        """Raise an error if there are shapes and dtypes in place of arrays, for calls that compute with the arrays."""
        if jax.ShapeDtypeStruct not in map(type, self.leaves):
            return
        names = shared_names(self.key, call)
        name = next(n for n, leaf in zip(names, self.leaves, strict=True) if isinstance(leaf, jax.ShapeDtypeStruct))
        raise ArgumentError(
            f"the shared argument {name} is a jax.ShapeDtypeStruct, which has no data: `.plan` and `.explain` take it "
            "in place of an array, but nothing can be computed with it. Give the array"
        )

    def split(self, arrays: Sequence[Any]) -> list[list[Any]]:
        """The array leaves of each argument."""
        remaining, values = iter(self.key[3]), iter(arrays)
        counts = [part.num_leaves for part in self._treedef.children()]
        return [[next(values) for fixed in itertools.islice(remaining, count) if fixed is None] for count in counts]


def shared_names(key: Any, call: Arguments) -> list[str]:
    """The names of the array leaves of shared arguments with this key, such as `params['w']`."""
    treedef, _, described, _ = key
    arguments = [part.name for part in call.parts if part.axis is None]
    try:
        paths = jax.tree_util.tree_flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))[0]
        names = [arguments[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths]
    except Exception:  # a class of the user that cannot hold numbers
        names = [f"leaf {leaf}" for leaf in range(treedef.num_leaves)]
    return [name for name, description in zip(names, described, strict=True) if description is not None]


def shared_difference(planned: Any, given: Any, call: Arguments) -> str:
    """A description of the difference between the keys of two shared arguments."""
    if planned[0] != given[0]:
        return "their trees differ" + _tree_difference(planned, given, call)
    names = iter(shared_names(planned, call))
    for was, now in zip(planned[2], given[2], strict=True):
        name = next(names, "a leaf") if was is not None else "a leaf"
        if was != now:
            return f"{name} was {_leaf_text(was)}, is {_leaf_text(now)}"
    return "their static values differ"


def _tree_difference(planned: Any, given: Any, call: Arguments) -> str:
    was, now = (set(shared_names(key, call)) for key in (planned, given))
    missing, further = sorted(was - now), sorted(now - was)
    told = [f"{', '.join(missing[:3])} is missing"] if missing else []
    told += [f"{', '.join(further[:3])} is new"] if further else []
    return f" ({'; '.join(told)})" if told else ""


def _leaf_text(described: Any) -> str:
    if described is None:
        return "not an array"
    if isinstance(described, type):
        return f"a Python {described.__name__}"
    shape, dtype, weak = described
    return f"{dtype}{list(shape)}{', weakly typed as Python numbers are' if weak else ''}"


def _fixed_key(leaf: Any) -> Hashable:
    try:
        key = bits_key(leaf)
        hash(key)
        return key
    except TypeError:
        return Identity(leaf)
