"""A decorated function as the owner of plans: it recognises its own, attaches loaded ones, and refuses others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jitbatch.execute.sizes import Sizes
from jitbatch.ir.graph import Graph
from jitbatch.ir.items import common_item
from jitbatch.plan.capacity import Capacity, sizes_of
from jitbatch.plan.contexts import Contexts
from jitbatch.plan.plan import Plan
from jitbatch.plan.recorded import Recorded
from jitbatch.plan.saved.plans import SavedStatic, attach, call_of, name_of
from jitbatch.plan.saved.values import CHANGED
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.rows import ClosesOverTracer
from jitbatch.record.shared_arguments import SharedArguments, shared_difference
from jitbatch.record.structure import Structure
from jitbatch.util.errors import PlanError
from jitbatch.util.sites import describe_function


class PlanOwner:
    """A decorated function and its contexts.

    Attributes:
        function: the decorated function. Its plans refer to it.
        contexts: its contexts.
    """

    def __init__(self, function: Any, contexts: Contexts):
        self.function = function
        self.contexts = contexts

    @property
    def name(self) -> str:
        return describe_function(self.function.__wrapped__)

    def check(self, plan: Plan) -> None:
        """Raises `PlanError` if another function made the plan."""
        owner = plan.static.owner
        if owner is not self.function:
            raise PlanError(
                f"the plan was made by {describe_function(owner.__wrapped__)}, not by {self.name}: a plan is for the "
                "function that made it"
            )

    def attached(self, plan: Plan, shared: SharedArguments) -> Plan:
        """Returns a plan of this function. A loaded plan gets a static part with the tables of this function."""
        saved: Any = plan.static
        if isinstance(saved, SavedStatic):
            saved.check(name_of(self.function), shared.key)
            arguments = call_of(saved)
            shared = shared.in_order(arguments.orders)
            context = self.contexts.find(arguments, shared, self.contexts.first_granularity(plan))
            recorder = self._exemplar_recorder(context, shared, arguments)
            plan = attach(plan, self.function, shared.key, context.tables, recorder)
        self.check(plan)
        return plan

    def ready(self, plan: Plan, shared: SharedArguments) -> Plan:
        """Returns a plan that runs with these shared arguments. Raises `PlanError` if they do not fit the plan."""
        plan = self.attached(plan, shared)
        if plan.is_sharded:
            raise PlanError(
                f"the plan has {plan.shards} shards, of which one is run at a time: `plan.shard(i)`, or "
                "`plan.shard(0)` inside jax.shard_map, where each device has its own"
            )
        static = plan.static
        if static.shared_key != shared.key:
            raise PlanError(
                f"the shared arguments differ in structure, shape or dtype from those that the plan of {self.name} "
                f"was made with: {shared_difference(static.shared_key, shared.key, static.call)}. Plan again with these"
            )
        return plan

    def least_sizes(self, like: Plan | Capacity | None, batch: Recorded, out: str) -> Sizes:
        """Returns the sizes of `like` with the ids of a batch's tables: the least sizes of its plan."""
        context, call = batch.context, batch.call
        if isinstance(like, Plan):
            like = self.attached(like, call.shared)
            if like.static.tables is context.tables:
                return like.sizes
            # The plan is of a dropped context, or of other shared arguments: translate its sizes by name.
            like = like.capacity if like.static.program.sizes is not None else None
        if like is None:
            return Sizes()
        sizes = sizes_of(like, context.tables, self._exemplar_recorder(context, call.shared, call.arguments))
        item = None
        if out == "ragged":
            item = common_item([graph.items for graph in sizes.exemplars], context.tables.classes)
        return replace(sizes, items=like.items, item=item)

    def _exemplar_recorder(
        self, context: Context, shared: SharedArguments, arguments: Arguments
    ) -> Callable[[Any], Graph]:
        """Returns a function from an exemplar to its graph."""
        names = [part.name for part in arguments.mapped]

        def record(sample: Any) -> Graph:
            try:
                return context.graph(Structure(sample, 0, names, has_data=False), 0, shared, arguments)
            except ClosesOverTracer:
                raise
            except Exception as error:
                raise PlanError(
                    f"what was saved does not fit {self.name}, which cannot be recorded with a sample of it: {CHANGED}"
                ) from error

        return record
