"""A cache of the keys of shared arguments: arguments like those of an earlier call keep its key."""

import operator
from typing import Any, NamedTuple

from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.util import compat
from jitbatch.util.caches import Cache
from jitbatch.util.key_order import KnownOrders
from jitbatch.util.static import flatten_with_statics

MAX_KNOWN = 16
"""The number of trees of shared arguments that are stored for a function."""


class Known(NamedTuple):
    """The shared arguments of an earlier call, without their values.

    Attributes:
        kinds, avals: the class and the aval of each leaf.
        like: the arguments. Only properties that do not depend on values are read.
        orders: the order of keys in their dicts.
    """

    kinds: list[type]
    avals: list[Any]
    like: SharedArguments
    orders: KnownOrders


class KnownShared:
    """Makes the `SharedArguments` of the calls of one function.

    Parameters usually look like those of the last call: their trees and avals are equal. Mostly the avals are even the
    same objects, since all results of a compiled program share its avals. Then no key is computed or hashed.
    """

    def __init__(self) -> None:
        self._known = Cache(MAX_KNOWN)

    def of(self, shared: tuple[Any, ...]) -> SharedArguments:
        leaves, treedef, statics = flatten_with_statics(shared)
        avals = compat.avals_of(leaves)
        if avals is None:
            return SharedArguments(shared)
        kinds = list(map(type, leaves))
        key = treedef, statics
        known: Known | None = self._known.get(key)
        if known is not None and kinds == known.kinds and avals == known.avals:
            found = known.like.with_values(shared, leaves)
            if known.orders.hold(shared):
                found.orders = known.orders.orders
            if not all(map(operator.is_, avals, known.avals)):
                self._replace(key, known._replace(avals=avals))  # so that the next call can compare by identity
            return found
        found = SharedArguments(shared)
        if all(described is not None for described in found.key[2]):
            orders = KnownOrders(shared, found.orders)
            self._replace(key, Known(kinds, avals, found.without_values(), orders))
        return found

    def _replace(self, key: Any, known: Known) -> None:
        self._known.discard(key)
        self._known.put(key, known)
