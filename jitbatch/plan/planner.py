"""From a call to a plan: record the samples, choose granularity and executor, and determine the sizes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jitbatch.execute.registry import EXECUTORS, FIRST, GENERAL
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.compiles import logger
from jitbatch.plan.contexts import Contexts
from jitbatch.plan.eager import on_grid
from jitbatch.plan.minibatches import capacity_of_minibatches
from jitbatch.plan.no_samples import note_output, results_of_no_samples
from jitbatch.plan.options import Options
from jitbatch.plan.owner import PlanOwner
from jitbatch.plan.plan import Plan
from jitbatch.plan.plannable import Plannable
from jitbatch.plan.recorded import Call, Recorded
from jitbatch.plan.request import PlanRequest
from jitbatch.plan.rooms import Rooms
from jitbatch.plan.serving import ServingPlanner
from jitbatch.plan.strategy import Strategy
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.known_shared import KnownShared
from jitbatch.record.rows import ClosesOverTracer
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.tune.auto import Choice, Way
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError, PlanError
from jitbatch.util.meshes import without_explicit_mesh


class Planner:
    """Plans the batches of one function, and caches the recordings.

    Attributes:
        owner: the decorated function, as the owner of its plans.
        contexts: the caches of its recordings.
        options: the arguments of the decorator.
    """

    def __init__(self, function: Any, granularity: str, options: Options):
        self.contexts = Contexts(function.__wrapped__, granularity)
        self.owner = PlanOwner(function, self.contexts)
        self.options = options
        self._with_executor = {name: replace(options, executor=name) for name in EXECUTORS}
        self._known_shared = KnownShared()
        self._strategy = Strategy(self.contexts, options.executor)

    def call(self, arguments: Arguments) -> Call:
        return Call(arguments, self._known_shared.of(arguments.shared))

    @without_explicit_mesh
    def plan(self, call: Call, request: PlanRequest) -> Plan:
        """Makes a plan that the caller may keep."""
        if call.is_empty:
            raise PlanError("there are no samples to plan")
        request.check(self.options.executor)
        try:
            plan = self._plan(call, self.context_of(call, request.like), FIRST, request)
        except ClosesOverTracer:
            raise PlanError(
                f"{self.owner.name} cannot be planned: it uses a value of an outer JAX transformation (jax.grad, jit, "
                "vmap, ...) that it closes over. A plan outlives the transformation: pass that value as a shared "
                "argument instead, or call .batch on the samples inside it"
            ) from None
        traced = [leaf for leaf in jax.tree.leaves(plan.rows) if compat.is_tracer(leaf)]
        if traced:
            raise PlanError(
                "the samples hold values of an outer JAX transformation (jax.grad, jit, vmap, ...), but a plan's "
                f"inputs are constants. {_instead_of_planning(traced)}"
            )
        return plan

    @without_explicit_mesh
    def plan_for_once(self, call: Call) -> Plan:
        """Makes a plan to run immediately. It may hold tracers of an outer transformation."""
        try:
            return self._plan(call, self.context_of(call), FIRST, PlanRequest(is_eager=True))
        except ClosesOverTracer:
            return self._plan(call, self.contexts.for_tracers(), GENERAL, PlanRequest())

    @without_explicit_mesh
    def capacity(self, call: Call, batch_size: int) -> Capacity:
        """Returns a capacity for the minibatches of a data set.

        Args:
            call: the arguments, with the whole data set as samples.
            batch_size: the number of samples in a minibatch.
        """
        if not 0 < batch_size <= len(call.samples):
            raise ArgumentError(
                f"batch_size={batch_size} is not a number of samples that a minibatch can have: there are "
                f"{len(call.samples)}"
            )
        batch = Recorded(call, self.context_of(call))
        batch.record()
        return capacity_of_minibatches(Plannable(self.owner, batch, self._with_executor[FIRST]), batch_size)

    def for_serving(self) -> ServingPlanner:
        """Returns a planner for a server, with the same recordings."""
        return ServingPlanner(self.owner, self.options)

    @without_explicit_mesh
    def ready(self, plan: Plan, shared: SharedArguments) -> Plan:
        """Returns a plan that runs with these shared arguments. Raises `PlanError` if they do not fit the plan."""
        return self.owner.ready(plan, shared)

    @without_explicit_mesh
    def results_of_no_samples(self, call: Call) -> Any:
        """Returns the result of an empty batch."""
        return results_of_no_samples(self.owner.name, self.options.out, self.context_of(call))

    @without_explicit_mesh
    def context_of(self, call: Call, like: Plan | Capacity | str | None = None) -> Context:
        """Returns the context that the samples of a call are first recorded in."""
        return self.contexts.find(call.arguments, call.shared, self.contexts.first_granularity(like))

    def _plan(self, call: Call, context: Context, first_executor: str, request: PlanRequest) -> Plan:
        """Plans a batch.

        Args:
            call: the arguments of the batch.
            context: the context to record the samples in.
            first_executor: the first executor for `executor="auto"`.
            request: the request.
        """
        with jax.profiler.TraceAnnotation("jitbatch.plan"):
            plannable = self._plannable(call, context, first_executor, request)
            rooms = self._rooms(plannable, request)
            if rooms is None:
                plan = plannable.plan_like(request.least)
            else:
                count = len(plannable.batch)
                room_for = on_grid(count) if request.is_eager else count // (request.shards or 1)
                plan = rooms.plan(
                    plannable.batch.nodes,
                    lambda like, has_headroom: plannable.plan_like(like, room_for if has_headroom else 0),
                )
        if self.options.out != "list":
            note_output(plan, context)
        logger.debug("planned %s: %r", self.owner.function, plan)
        return plan

    def _plannable(self, call: Call, context: Context, first_executor: str, request: PlanRequest) -> Plannable:
        """Records a batch, and chooses granularity and executor. The arguments are those of `_plan`."""
        batch = Recorded(call, context)
        if request.is_eager and not batch.is_concrete_or_differentiated_once:
            first_executor = GENERAL  # inside `jax.jit` no program is reused anyway
        executor = first_executor if self.options.executor == "auto" else self.options.executor
        if EXECUTORS[executor].records_samples:
            batch.record()
        choice = Choice(Way(context.granularity, executor))
        if not request.asks_for_a_program:
            choice = self._strategy.choose(batch, choice.way)
        if choice.way.granularity != context.granularity:
            batch = self._strategy.recorded_by(batch, choice.way.granularity)
            batch.record()
        options = self._with_executor[choice.way.executor]
        if request.differentiable:
            options = replace(options, differentiable=request.differentiable)
        return Plannable(self.owner, batch, options, request.shards, choice.reason)

    def _rooms(self, plannable: Plannable, request: PlanRequest) -> Rooms | None:
        """Returns the rooms of the caller, or those for an eager plan or for `like="auto"`; else None."""
        batch, options = plannable.batch, plannable.options
        if request.rooms is not None or not EXECUTORS[options.executor].has_room:
            return request.rooms
        count, platform = len(batch), options.platform_for(batch.call.shared)
        if request.is_eager:
            is_traced = any(True for _ in batch.tracers)
            eager = ("eager", on_grid(count), is_traced, platform)
            return batch.context.rooms.get_or_make(eager, lambda: Rooms(headroom_at_first=True))
        if request.like == "auto":
            return batch.context.rooms.get_or_make((request.shards, count, request.differentiable, platform), Rooms)
        return None


def _instead_of_planning(traced: Sequence[Any]) -> str:
    """Returns the remedy for samples that are tracers, as part of an error message."""
    if any(list(compat.modes_of(leaf)) for leaf in traced):
        return "To differentiate with respect to samples, call .batch on the samples themselves"
    return (
        "Plan outside of the transformation, and pass it the plan in place of the samples: "
        "`plan = f.plan(params, samples)`, then `step(params, plan)` with `f.batch(params, plan)` inside the step"
    )
