"""The choice of `"auto"` for a batch: the executor and the granularity (a *way*), by predicted time.

A batch begins with a way that serves every function and compiles little. Another way must be compiled first. This is
the ski rental problem: the other way is bought once its savings so far, had it been there, reach its price. So waiting
wastes no more than the price. All choices follow from counts of the batches so far and from known costs, never from a
clock: the same calls lead to the same choices.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from jitbatch.execute.registry import EXECUTORS
from jitbatch.ir.graph import Graph
from jitbatch.tune.cost import (
    PREDICTIONS,
    Costs,
    Load,
    known_costs,
    load_of,
    per_sample_seconds,
    structures_price,
    whole_seconds,
)
from jitbatch.util.caches import Cache

MAX_FEW = 32
"""The largest number of structures with which a function may run in another way than the first: sample by sample, by
whole samples or by single operations. Also the largest number of purchases of each sort: each one compiles the step
function that uses the plan once more."""

MARGIN = 1.1
"""The factor by which another way must be faster."""

MAX_BATCHES = 256
"""The number of batches with cached predictions. Savings have a cache of four times that size."""

patience = 1.0
"""Another way is bought once its savings reach this multiple of its price. Tests set it to zero."""


class Way(NamedTuple):
    """A way to run a batch: a granularity and an executor."""

    granularity: str
    executor: str


class Choice(NamedTuple):
    """A way, and the reason for its choice; empty for the first way."""

    way: Way
    reason: str = ""


class Offer(NamedTuple):
    """Another way: the predicted seconds of a batch, the price of its compilation in seconds, and a short reason."""

    way: Way
    seconds: float
    price: float
    because: str


class Chooser:
    """The choices for batches of one function with one kind of shared arguments."""

    def __init__(self, structures: Cache):
        """`structures` is the cache of graphs, with one graph for each structure so far."""
        self._structures = structures
        self._offers = Cache(MAX_BATCHES)
        self._chosen = Cache(MAX_BATCHES)
        self._saved = Cache(4 * MAX_BATCHES)
        self._bought: dict[str, set[Hashable]] = {"recording": set(), "program": set()}
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there may be another choice than the first way: there are few structures so far."""
        return len(self._structures) <= MAX_FEW

    def choose(
        self, graphs: Sequence[Graph], first: Way, others: Collection[Way], operations: Callable[[], Sequence[Graph]]
    ) -> Choice:
        """Choose the way to run a batch.

        Args:
            graphs: one for each sample.
            first: the way that batches begin with. If programs of its executor serve other batches too
                (`has_room`), batches that differ in the order of samples count as different.
            others: the other ways that may be chosen.
            operations: returns the graphs of the samples, recorded as single operations.
        """
        if not self.is_open:
            return Choice(first)
        batch = (first, tuple(graphs) if EXECUTORS[first.executor].has_room else frozenset(Counter(graphs).items()))
        chosen = self._chosen.get(batch)
        if chosen is not None and chosen.way in others:
            return chosen
        costs = known_costs()
        load, seconds, offers = self._offers.get_or_make(batch, lambda: _offers(graphs, first, costs))
        single = Way("op", first.executor)
        # If few subgraphs share a type, single operations may still share one. To find out, they must be recorded. That
        # pays only after their largest possible saving has reached the price of recording and compiling them.
        is_open = single in others and single not in offers and load.samples > 1 and load.nodes < 2 * load.steps
        price = load.structure_equations * costs.record + costs.program
        if is_open and self._pays("recording", batch, seconds, price):
            offers[single] = _offer_of_operations(load_of(operations()), single, costs)
        cheapest_first = sorted(offers.values(), key=lambda offer: offer.seconds)
        for offer in cheapest_first:
            if offer.way not in others or offer.seconds * MARGIN >= seconds:
                continue
            if self._pays("program", (offer.way, batch), seconds - offer.seconds, offer.price):
                against = f"predicted {1e3 * offer.seconds:.2g} ms against {1e3 * seconds:.2g} ms"
                choice = Choice(offer.way, f"{offer.because}; {against}")
                return self._chosen.put(batch, choice) if offer is cheapest_first[0] else choice
        return Choice(first)

    def _pays(self, sort: str, what: Hashable, saving: float, price: float) -> bool:
        """Add `saving` to the savings so far, and return whether the purchase is made by now.

        Args:
            sort: "recording" or "program".
            what: the key of the purchase.
            saving: the seconds that it would have saved in this batch.
            price: its price in seconds.
        """
        bought = self._bought[sort]
        with self._lock:
            if what in bought:
                return True
            saved = saving + (self._saved.get((sort, what)) or 0.0)
            self._saved.discard((sort, what))
            self._saved.put((sort, what), saved)
            if saved < patience * price or len(bought) >= MAX_FEW:
                return False
            bought.add(what)
            return True


def _offers(graphs: Sequence[Graph], first: Way, costs: Costs) -> tuple[Load, float, dict[Way, Offer]]:
    """The load of a batch, its predicted seconds in the first way, and the other ways without single operations."""
    load = load_of(graphs)
    if load.has_effects:
        return load, 0.0, {}
    found = [
        Offer(Way("graph", first.executor), whole_seconds(load, costs), structures_price(load, costs), "whole samples"),
        Offer(
            Way(first.granularity, "per_sample"), per_sample_seconds(load, costs), structures_price(load, costs),
            "one sample" if load.samples == 1 else "samples with little in common",
        ),
    ]  # fmt: skip
    seconds = PREDICTIONS[first.executor].seconds(load, costs)
    return load, seconds, {offer.way: offer for offer in found}


def _offer_of_operations(load: Load, way: Way, costs: Costs) -> Offer:
    predicted = PREDICTIONS[way.executor]
    return Offer(way, predicted.seconds(load, costs), predicted.price(load, costs), "single operations")
