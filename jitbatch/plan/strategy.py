"""The granularity and executor of a batch, where the user leaves them to `"auto"`."""

from collections.abc import Sequence

from jitbatch.execute.registry import EXECUTORS, ONE_BY_ONE
from jitbatch.ir.graph import Graph
from jitbatch.plan.contexts import Contexts
from jitbatch.plan.recorded import Recorded
from jitbatch.tune.auto import Choice, Chooser, Way
from jitbatch.tune.cost import PREDICTIONS


class Strategy:
    """The choice of granularity and executor for the batches of one function.

    Args:
        contexts: the contexts of the function.
        executor: the argument of the decorator.
    """

    def __init__(self, contexts: Contexts, executor: str):
        self._contexts = contexts
        self._executor = executor

    def choose(self, batch: Recorded, first: Way) -> Choice:
        """Returns the way `first`, unless the cost model predicts that another way pays."""
        context = batch.context
        if context.chooser is None:
            context.chooser = Chooser(context.graphs)
        chooser: Chooser = context.chooser
        others = self._others(batch, first) if chooser.is_open else ()
        if not others:
            return Choice(first)

        def by_operations() -> Sequence[Graph]:
            return self.recorded_by(batch, "op").record()

        return chooser.choose(batch.graphs, first, others, by_operations)

    def recorded_by(self, batch: Recorded, granularity: str) -> Recorded:
        """Returns the samples of a batch in the context of another granularity."""
        return Recorded(batch.call, self._contexts.find(batch.call.arguments, batch.call.shared, granularity))

    def _others(self, batch: Recorded, first: Way) -> set[Way]:
        """Returns the alternatives to the first way to run a batch."""
        others: set[Way] = set()
        is_auto, is_auto_granularity = self._executor == "auto", self._contexts.granularity == "auto"
        has_prediction = first.executor in PREDICTIONS and EXECUTORS[first.executor].records_samples
        if not has_prediction or batch.context.may_close_over_tracers:
            return others
        if not (is_auto or is_auto_granularity) or not batch.is_concrete_or_differentiated_once:
            return others
        if is_auto_granularity:
            others |= {Way("graph", first.executor), Way("op", first.executor)}
        if is_auto:
            others.add(Way(first.granularity, ONE_BY_ONE))
        return others
