"""The contexts of a function: the caches of its recordings, one for each kind of shared arguments."""

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jitbatch.ir.cell import Identity
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.plan import Plan
from jitbatch.plan.saved.plans import SavedStatic
from jitbatch.record import context as context_module
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.util import compat, passes
from jitbatch.util.budget import Budget
from jitbatch.util.caches import Cache, CacheInfo

MAX_CONTEXTS = 16
"""The number of kinds of shared arguments whose recordings are cached."""


class LastContext(NamedTuple):
    """The context of the last call, for calls that look like it: their keys are the same objects.

    Attributes:
        looks: the objects that decide which context it is.
        axes: the axes of the arguments.
        context: the context, for the order of keys that was met first.
    """

    looks: tuple[Any, ...]
    axes: tuple[int | None, ...]
    context: Context


class Contexts:
    """The contexts of one function.

    Iteration yields the contexts for the orders of keys that were met first.

    Args:
        fun: the function.
        granularity: the argument of the decorator.
    """

    def __init__(self, fun: Callable[..., Any], granularity: str):
        self.granularity = granularity
        self.budget = Budget(context_module.MAX_BYTES)
        self._fun = fun
        self._cache = Cache(MAX_CONTEXTS)
        self._last = Cache(1)

    def __iter__(self) -> Iterator[Context]:
        return iter(self._cache)

    def find(self, arguments: Arguments, shared: SharedArguments, granularity: str) -> Context:
        """Returns the context of these arguments. A context that is full is replaced by a new one."""
        settings, off = compat.trace_context(), passes.switched_off()
        looks = granularity, shared.key, arguments.layout, settings, off
        last: LastContext | None = self._last.get(None)
        axes = arguments.axes
        is_last = last is not None and all(map(operator.is_, looks, last.looks)) and axes == last.axes
        if last is not None and is_last and not last.context.is_full:
            return last.context.in_order(shared.orders)
        key = (granularity, shared.key, arguments.layout, axes, (Identity(settings), off))
        orders = shared.orders
        context = self._cache.get_or_make(key, lambda: Context(self._fun, granularity, orders, budget=self.budget))
        if context.is_full:
            self._cache.discard(key)
            context = self._cache.put(key, Context(self._fun, granularity, orders, before=context, budget=self.budget))
        self._last.discard(None)
        self._last.put(None, LastContext(looks, axes, context))
        return context.in_order(orders)

    def for_tracers(self) -> Context:
        """Returns a context that is not cached, for a function that closes over tracers."""
        return Context(self._fun, self.first_granularity(None), may_close_over_tracers=True)

    def first_granularity(self, like: Plan | Capacity | str | None) -> str:
        """Returns the user's granularity. For `"auto"` it is that of `like`, or else `"subgraph"`."""
        if self.granularity != "auto":
            return self.granularity
        if isinstance(like, Plan):
            static: Any = like.static
            return static.granularity if isinstance(static, SavedStatic) else static.tables.granularity
        return like.granularity if isinstance(like, Capacity) else "subgraph"

    def cache_info(self) -> dict[str, CacheInfo]:
        first = list(self._cache)
        contexts = [*first, *(other for context in first for other in context.others)]
        return {
            "structures": _total([context.graphs.info() for context in contexts], context_module.MAX_STRUCTURES),
            "subgraphs": _total([context.known.info() for context in first], context_module.MAX_SIGNATURES),
            "programs": _total([context.programs.info() for context in contexts], context_module.MAX_PROGRAMS),
            "rooms": _total([rooms.info() for context in first for rooms in context.rooms], context_module.MAX_ROOMS),
        }


def _total(infos: list[CacheInfo], maxsize: int) -> CacheInfo:
    return CacheInfo(sum(i.hits for i in infos), sum(i.misses for i in infos), maxsize, sum(i.currsize for i in infos))
