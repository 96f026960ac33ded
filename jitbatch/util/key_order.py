"""The order of keys in mappings.

JAX sorts the keys of a dict when it flattens it, and an unflattened dict has its keys in sorted order. `defaultdict`,
Flax's `FrozenDict`, `nnx.State` and `nnx.Dict` behave in the same way. User code that iterates over a dict expects the
original order. Where that is not the sorted order, this module stores it beside the treedef.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from jitbatch.util import compat
from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.caches import Cache
from jitbatch.util.static import Static, flatten_with_statics

Orders: TypeAlias = tuple[tuple[Hashable, ...], ...]
"""The keys of each mapping with more than one key, from the root to the leaves; empty if all of them are sorted."""


class OrderedTree(NamedTuple):
    """A treedef with the order of keys of its mappings. If all keys are sorted, the plain treedef is used instead."""

    treedef: Any
    orders: Orders

    @property
    def num_leaves(self) -> int:
        return self.treedef.num_leaves

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree with these leaves. The leaves are in the order of `jax.tree.flatten`."""
        leaves = list(leaves)
        build = _builders.get_or_make(self, lambda: _builder_of(self)) if len(leaves) <= MOST_LEAVES else None
        return build(leaves) if build else _Ordering(leaves, self.orders).tree(self.treedef.unflatten(leaves))


def with_orders(treedef: Any, orders: Orders) -> Any:
    """An `OrderedTree` of a treedef and its orders; the plain treedef if `orders` is empty."""
    return OrderedTree(treedef, orders) if orders else treedef


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of `jax.tree.flatten`, and a treedef that keeps the order of keys."""
    leaves, treedef = jax.tree.flatten(tree)
    return leaves, with_orders(treedef, orders_of(tree, treedef))


MOST_LEAVES = 1024
"""A tree with more leaves is ordered without a cached function. It may be a sample, and there are many of these."""

_builders = Cache(256)
"""For a tree of lists, tuples and dicts of strings, the function of `_builder_of`; False for other trees."""

Builder: TypeAlias = Callable[[Sequence[Any]], Any]


def _builder_of(tree: OrderedTree) -> Builder | bool:
    """A function from the leaves to the tree. It takes a fraction of the time of ordering an unflattened tree. False if
    the tree has nodes of other classes than lists, tuples and dicts of strings: equal keys of other classes may differ,
    such as 1 and True."""
    places = [_Place(place) for place in range(tree.num_leaves)]
    try:
        unflattened = tree.treedef.unflatten(places)
    except Exception:  # a user class that cannot hold `_Place` objects
        return False
    if not _is_plain(unflattened):
        return False
    return _builder(_Ordering(places, tree.orders).tree(unflattened))


class _Place(NamedTuple):
    """The place of a leaf among all leaves."""

    place: int


def _is_plain(node: Any) -> bool:
    kind = type(node)
    if kind is dict:
        return all(type(key) is str for key in node) and all(map(_is_plain, node.values()))
    return kind is _Place or node is None or (kind in (tuple, list) and all(map(_is_plain, node)))


def _builder(node: Any) -> Builder:
    if type(node) is _Place:
        return operator.itemgetter(node.place)
    if node is None:
        return lambda leaves: None
    if type(node) is dict:
        items = [(key, _builder(part)) for key, part in node.items()]
        return lambda leaves: {key: build(leaves) for key, build in items}
    kind, parts = type(node), [_builder(part) for part in node]
    return lambda leaves: kind([build(leaves) for build in parts])


class TooManyParts(ValueError):
    """A tree has more parts than allowed."""


def flatten_in_order(tree: Any, most: int | None = None) -> tuple[list[Any], Any, tuple[Static[Any], ...]]:
    """The leaves and the treedef of `flatten`, and the `Static` nodes in flattening order.

    Args:
        tree: the tree.
        most: the largest number of parts of the tree, including leaves. A part with two references counts twice,
            because JAX flattens it twice: a few dozen tuples can be a tree that fits into no memory. Larger trees raise
            `TooManyParts`.
    """
    if most is not None:
        _check_parts(tree, most)
    leaves, treedef, statics = flatten_with_statics(tree)
    return leaves, with_orders(treedef, orders_of(tree, treedef)), statics


def _check_parts(tree: Any, most: int) -> None:
    """Raise `TooManyParts` for a tree of more than `most` parts.

    This is a separate pass, without recursion. An exception inside of JAX's flattening would leave Python's recursion
    depth too high.
    """
    waiting, sequences = [tree], {tuple, list}
    for _ in range(most):
        if not waiting:
            return
        part = waiting.pop()
        cls = type(part)
        if cls in sequences:
            waiting += part
        elif cls is dict:
            waiting += part.values()
        elif cls not in _LEAVES:
            children = compat.children(part) or ()
            waiting += children
            if isinstance(part, tuple) and len(children) == len(part) and all(map(operator.is_, children, part)):
                sequences.add(cls)  # a named tuple
    if waiting:
        raise TooManyParts


_LEAVES = frozenset({*NUMBERS, np.ndarray, NoneType})
"""Frequent classes in samples that are not containers."""


def structure(tree: Any) -> Any:
    """The treedef of a tree, with the order of keys."""
    return flatten(tree)[1]


def sorted_tree(tree: Any) -> Any:
    """The plain treedef, without the order of keys."""
    return tree.treedef if type(tree) is OrderedTree else tree


_without_mappings = Cache(65536)
"""The `node_kinds` of trees without mappings. `orders_of` does not visit the nodes of such a tree."""


def orders_of(tree: Any, treedef: Any) -> Orders:
    """The order of keys in a tree with this treedef."""
    kinds = compat.node_kinds(treedef)
    if kinds in _without_mappings:
        return ()
    nodes: list[Any] = []
    add: Any = nodes.append  # returns None, so that flattening continues below the node
    jax.tree.flatten(tree, is_leaf=add)
    mappings = set(filter(_is_mapping, set(map(type, nodes))))
    if mappings:
        return _orders(nodes, mappings)
    _without_mappings.put(kinds, True)
    return ()


class KnownOrders:
    """The order of keys in a tree, for comparison with another tree of the same treedef.

    In trees of dicts, lists and tuples, each dict is found by its path. This is faster than flattening the tree.

    Attributes:
        orders: the order of keys in the tree.
    """

    def __init__(self, tree: Any, orders: Orders):
        self.orders = orders
        self._dicts: list[tuple[tuple[Any, ...], tuple[Hashable, ...]]] = []
        self._is_plain = self._add(tree, ())

    def hold(self, tree: Any) -> bool:
        """Whether a tree with the same treedef certainly has this order of keys."""
        if not self._is_plain:
            return False
        for path, keys in self._dicts:
            node = tree
            for key in path:
                node = node[key]
            if tuple(node) != keys:
                return False
        return True

    def _add(self, node: Any, path: tuple[Any, ...]) -> bool:
        """Add the dicts of a tree; False if it has nodes of other classes."""
        cls = type(node)
        if cls is dict:
            if len(node) > 1:
                self._dicts.append((path, tuple(node)))
            return all(self._add(part, (*path, key)) for key, part in node.items())
        if cls in (tuple, list):
            return all(self._add(part, (*path, index)) for index, part in enumerate(node))
        return compat.children(node) is None


def orders_above(tree: Any, parts: Sequence[Any]) -> Orders:
    """The order of keys in a tree, without the mappings inside of `parts`."""
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
    # Other classes than `dict` may treat the order in their own way, so for them it is always kept.
    return () if mappings <= {dict} and all(map(_are_sorted, set(orders))) else orders


def _are_sorted(keys: tuple[Any, ...]) -> bool:
    return list(keys) == sorted(keys)


def _is_mapping(cls: type) -> bool:
    """Whether JAX may lose the order of keys of a class of mappings. `OrderedDict` keeps its order."""
    return cls is dict or (issubclass(cls, Mapping) and cls is not OrderedDict)


class _Ordering:
    """Restores the order of keys in an unflattened tree. A mapping is ordered before the nodes that hold it are
    built."""

    def __init__(self, leaves: Iterable[Any], orders: Orders):
        self._ends = set(map(id, leaves))  # a leaf may be a tree itself
        self._orders = iter(orders)

    def tree(self, tree: Any) -> Any:
        if id(tree) in self._ends:
            return tree
        if type(tree) is dict:
            keys = next(self._orders) if len(tree) > 1 else tuple(tree)
            ordered = {key: self.tree(part) for key, part in tree.items()}
            if len(keys) != len(ordered):
                raise ValueError(f"the order {keys} is not that of the keys {tuple(ordered)}")
            return {key: ordered[key] for key in keys}
        parts, outline = jax.tree.flatten(tree, is_leaf=self._is_part)
        if parts and parts[0] is tree:
            return self._mapping(tree)
        return outline.unflatten(map(self.tree, parts))

    def _is_part(self, node: Any) -> bool:
        return id(node) in self._ends or (_is_mapping(type(node)) and len(node) > 1)

    def _mapping(self, mapping: Any) -> Any:
        """A mapping of another class than `dict`, with its keys in their original order."""
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
