"""What `"auto"` stands for in a batch: the executor and the granularity, chosen by predicted time.

A batch begins with the way that serves everything and compiles little. Another way has to be compiled first, so it is
bought as one buys skis: once what it would have saved so far is what it costs. So no more is wasted on waiting than the
purchase costs. Everything here follows from counts of the batches seen so far and from the known costs, never from a
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
"""Only a function that has seen at most so many structures runs by loop, by whole samples or by single operations, and
for at most so many batches: each is one more compilation of the step that a plan is used in."""

MARGIN = 1.1
"""Another way has to be faster by this factor."""

MAX_BATCHES = 256
"""How many batches predictions and savings are remembered of."""

patience = 1.0
"""How many times its price another way must have saved before it is bought; tests set it to zero."""


class Way(NamedTuple):
    """How a batch is run."""

    granularity: str
    executor: str


class Choice(NamedTuple):
    """A way, and why it was chosen; nothing if batches begin with it."""

    way: Way
    reason: str = ""


class Offer(NamedTuple):
    """Another way: how long it takes, what it costs to have it, and what speaks for it."""

    way: Way
    seconds: float
    price: float
    because: str


class Chooser:
    """The choices for batches of one function with one kind of shared arguments."""

    def __init__(self, structures: Cache):
        """`structures` holds a graph for each structure that was seen."""
        self._structures = structures
        self._offers = Cache(MAX_BATCHES)
        self._chosen = Cache(MAX_BATCHES)
        self._saved = Cache(4 * MAX_BATCHES)
        self._bought: dict[str, set[Hashable]] = {"recording": set(), "program": set()}
        self._lock = threading.Lock()

    def choose(
        self, graphs: Sequence[Graph], first: Way, others: Collection[Way], operations: Callable[[], Sequence[Graph]]
    ) -> Choice:
        """How to run a batch.

        Args:
            graphs: one for each sample.
            first: what batches begin with. Where a program has room for a batch, the order of samples counts.
            others: what else may be chosen.
            operations: gives the graphs of single operations.
        """
        if self._structures.info().currsize > MAX_FEW:
            return Choice(first)
        batch = (first, tuple(graphs) if EXECUTORS[first.executor].has_room else frozenset(Counter(graphs).items()))
        chosen = self._chosen.get(batch)
        if chosen is not None and chosen.way in others:
            return chosen
        costs = known_costs()
        load, seconds, offers = self._offers.get_or_make(batch, lambda: _offers(graphs, first, costs))
        single = Way("op", first.executor)
        # Where subgraphs hardly meet others of their type, operations may. To know, they have to be recorded; and it is
        # of no use to know before what they could save is worth the compilation that comes with them.
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
        """Whether something is bought, after it would have saved something once more."""
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
    """What a batch needs, how long it takes at first, and what else there is."""
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
