"""A recorded batch with everything that its plan depends on, except for the sizes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from jitbatch.execute.batch_samples import BatchSamples
from jitbatch.execute.executor import SizeRequest
from jitbatch.execute.per_sample import SampleProgram, sample_program
from jitbatch.execute.registry import EXECUTORS
from jitbatch.plan.capacity import Capacity, check_arenas
from jitbatch.plan.make import make_plan
from jitbatch.plan.options import Options
from jitbatch.plan.outputs import outputs_of
from jitbatch.plan.owner import PlanOwner
from jitbatch.plan.per_sample import plan_per_sample
from jitbatch.plan.plan import Plan
from jitbatch.plan.recorded import Recorded
from jitbatch.plan.refill import refill_plan
from jitbatch.plan.shards import plan_shards, split, stacked
from jitbatch.plan.static import PlannedCall, PlanStatic


class Plannable(NamedTuple):
    """A recorded batch to be planned.

    Attributes:
        owner: the function.
        batch: the samples.
        options: the options of planning. They name the executor.
        shards: the number of shards, or None.
        reason: the reason for this granularity and executor, or "".
    """

    owner: PlanOwner
    batch: Recorded
    options: Options
    shards: int | None = None
    reason: str = ""

    def plan_like(self, like: Plan | Capacity | None, headroom_for: int = 0) -> Plan:
        """Plans the batch for the program of `like`, or, if it does not fit, with at least the sizes of `like`.

        Args:
            like: a plan, a capacity, or None.
            headroom_for: make a program with headroom for other batches of this many samples; 0 for none.
        """
        if isinstance(like, Plan) and not headroom_for:
            plan = self.refill(like)
            if plan is not None:
                return plan
        return self.make_like(like, headroom_for)

    def make_like(self, like: Plan | Capacity | None, headroom_for: int = 0) -> Plan:
        """Plans the batch with at least the sizes of `like`. The arguments are those of `plan_like`."""
        plan = self.make(SizeRequest(self.owner.least_sizes(like, self.batch, self.options.out), headroom_for))
        if isinstance(like, Capacity):
            check_arenas(plan.static.arenas, self.batch.context.tables)
        return plan

    def refill(self, like: Plan) -> Plan | None:
        """Plans the batch for the program of `like`.

        Returns:
            The plan, or None if the batch does not fit or `like` is loaded, or of another function, context or number
            of shards.
        """
        static: Any = like.static
        batch, options = self.batch, self.options
        is_known = isinstance(static, PlanStatic) and static.tables is batch.context.tables
        if not is_known or static.owner is not self.owner.function or not batch.graphs:
            return None
        if like.is_sharded is (self.shards is None):
            return None
        if self.shards is None:
            return refill_plan(like, BatchSamples(batch.graphs, lambda: batch.inputs, batch.known), options)
        first = like.shard(0)
        parts = split(len(batch), self.shards)
        samples = (BatchSamples(batch.graphs[part], partial(batch.inputs.__getitem__, part)) for part in parts)
        return stacked(refill_plan(first, some, options) for some in samples)

    def make(self, request: SizeRequest) -> Plan:
        """Plans the batch with a program of its own, which has the requested sizes."""
        batch, options = self.batch, self.options
        platform = options.platform_for(batch.call.shared)
        request = replace(request, platform=platform, static_loops=options.static_loops)
        recordings = batch.graphs if self._records_samples else self._sample_programs()
        if self.shards is None:
            return self._make_part(recordings, slice(None), request)
        # Check all outputs first, so that an error has the index of the sample in the whole batch.
        outputs_of(recordings, batch.context.tables, options.out, request.least)
        return plan_shards(partial(self._make_part, recordings), split(len(batch), self.shards), request)

    @property
    def _records_samples(self) -> bool:
        return EXECUTORS[self.options.executor].records_samples

    def _sample_programs(self) -> list[SampleProgram]:
        call, context = self.batch.call, self.batch.context
        return [
            sample_program(context, structure, index, call.shared, call.arguments)
            for index, structure in enumerate(self.batch.structures)
        ]

    def _make_part(self, recordings: Sequence[Any], part: slice, request: SizeRequest) -> Plan:
        """Plans some of the samples. `recordings` are the graphs of all samples, or their programs."""
        batch, options, shared = self.batch, self.options, self.batch.call.shared
        planned = PlannedCall(self.owner.function, shared.key, batch.call.arguments.emptied(shared.orders))
        if self._records_samples:
            return make_plan(planned, recordings[part], batch.inputs[part], options, request, self.reason)
        leaves = [structure.leaves for structure in batch.structures[part]]
        return plan_per_sample(
            planned, batch.context, recordings[part], leaves, options.out, request.least, self.reason
        )
