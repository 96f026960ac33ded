"""The order of keys in mappings.

JAX sorts the keys of a dict when it takes one apart, and a dict that it puts together has them in that order; so do
`defaultdict`, Flax's `FrozenDict`, `nnx.State` and `nnx.Dict`. Code that iterates over a dict sees its own order. Where
that is another one, it is kept beside the treedef.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from jitbatch.util import compat
from jitbatch.util.caches import Cache
from jitbatch.util.static import Static, flatten_with_statics

Orders: TypeAlias = tuple[tuple[Hashable, ...], ...]
"""The keys of each mapping of a tree that has several, from the root to the leaves; nothing if all are sorted."""


class OrderedTree(NamedTuple):
    """A treedef with mappings whose keys are not sorted. Where all of them are, the treedef stands for itself."""

    treedef: Any
    orders: Orders

    @property
    def num_leaves(self) -> int:
        return self.treedef.num_leaves

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree with these leaves, given in JAX's order."""
        leaves = list(leaves)
        return _Ordering(leaves, self.orders).tree(self.treedef.unflatten(leaves))


def with_orders(treedef: Any, orders: Orders) -> Any:
    """A treedef with the keys of its mappings in their own order: an `OrderedTree` if that is not JAX's."""
    return OrderedTree(treedef, orders) if orders else treedef


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """`jax.tree.flatten`, with a tree that knows the order of keys."""
    leaves, treedef = jax.tree.flatten(tree)
    return leaves, with_orders(treedef, orders_of(tree, treedef))


def flatten_in_order(tree: Any) -> tuple[list[Any], Any, tuple[Static[Any], ...]]:
    """`flatten`, and the `Static` nodes met on the way."""
    leaves, treedef, statics = flatten_with_statics(tree)
    return leaves, with_orders(treedef, orders_of(tree, treedef)), statics


def structure(tree: Any) -> Any:
    """`jax.tree.structure`, of a tree that knows the order of keys."""
    return flatten(tree)[1]


def sorted_tree(tree: Any) -> Any:
    """The treedef alone."""
    return tree.treedef if type(tree) is OrderedTree else tree


_without_mappings = Cache(65536)
"""Trees that hold no mapping, by the kinds of their nodes: their objects are not looked at."""


def orders_of(tree: Any, treedef: Any) -> Orders:
    """The order of keys in a tree, whose treedef is given."""
    kinds = compat.node_kinds(treedef)
    if kinds in _without_mappings:
        return ()
    nodes: list[Any] = []
    add: Any = nodes.append  # which returns nothing, and so goes on
    jax.tree.flatten(tree, is_leaf=add)
    mappings = set(filter(_is_mapping, set(map(type, nodes))))
    if mappings:
        return _orders(nodes, mappings)
    _without_mappings.put(kinds, True)
    return ()


def orders_above(tree: Any, parts: Sequence[Any]) -> Orders:
    """The order of keys in a tree, but for what is in some parts of it."""
    ends = set(map(id, parts))
    nodes: list[Any] = []

    def is_part(node: Any) -> bool:
        if id(node) in ends:
            return True
        nodes.append(node)
        return False

    jax.tree.flatten(tree, is_leaf=is_part)
    return _orders(nodes, set(filter(_is_mapping, set(map(type, nodes)))))


def _orders(nodes: Sequence[Any], mappings: set[type]) -> Orders:
    orders = tuple([tuple(node) for node in nodes if type(node) in mappings and len(node) > 1])
    # What classes other than `dict` make of an order is their own business.
    return () if mappings <= {dict} and all(map(_are_sorted, set(orders))) else orders


def _are_sorted(keys: tuple[Any, ...]) -> bool:
    return list(keys) == sorted(keys)


def _is_mapping(kind: type) -> bool:
    """Whether instances of a class are mappings whose order may be lost; `OrderedDict` is taken apart as it is."""
    return kind is dict or (issubclass(kind, Mapping) and kind is not OrderedDict)


class _Ordering:
    """Puts the mappings of a tree, which was just made of some leaves, in their own order. Each is ordered before
    anything is made that holds it."""

    def __init__(self, leaves: Iterable[Any], orders: Orders):
        self._ends = set(map(id, leaves))  # which may be trees themselves
        self._orders = iter(orders)

    def tree(self, tree: Any) -> Any:
        if id(tree) in self._ends:
            return tree
        if type(tree) is dict:
            keys = next(self._orders) if len(tree) > 1 else tuple(tree)
            made = {key: self.tree(part) for key, part in tree.items()}
            if len(keys) != len(made):
                raise ValueError(f"the order {keys} is not that of the keys {tuple(made)}")
            return {key: made[key] for key in keys}
        parts, outline = jax.tree.flatten(tree, is_leaf=self._is_part)
        if parts and parts[0] is tree:
            return self._mapping(tree)
        return outline.unflatten(map(self.tree, parts))

    def _is_part(self, node: Any) -> bool:
        return id(node) in self._ends or (_is_mapping(type(node)) and len(node) > 1)

    def _mapping(self, mapping: Any) -> Any:
        """The same for a mapping of another class than `dict`."""
        keys = next(self._orders)
        children, outline = jax.tree.flatten(mapping, is_leaf=lambda node: node is not mapping)
        mapping = outline.unflatten(map(self.tree, children))
        if tuple(mapping) == keys:
            return mapping
        items = {key: mapping[key] for key in keys}
        if not isinstance(mapping, MutableMapping):
            return type(mapping)(items)
        for key in keys:
            del mapping[key]
        mapping.update(items)
        return mapping
