"""Plans for a server, which decides their sizes itself."""

from dataclasses import replace

from jitbatch.execute.registry import EXECUTORS, FIRST
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.options import Options
from jitbatch.plan.owner import PlanOwner
from jitbatch.plan.plan import Plan
from jitbatch.plan.plannable import Plannable
from jitbatch.plan.recorded import Call, Recorded
from jitbatch.util.meshes import without_explicit_mesh


class ServingPlanner:
    """Makes plans with `out="rows"` that are not differentiated.

    The cost of batches does not influence the choice of the executor.

    Args:
        owner: the function. Its recordings are used.
        options: its options.
    """

    def __init__(self, owner: PlanOwner, options: Options):
        executor = FIRST if options.executor == "auto" else options.executor
        self._owner = owner
        self._options = replace(options, out="rows", executor=executor, derives=False)

    @property
    def batches(self) -> bool:
        """Whether the executor runs samples together."""
        return EXECUTORS[self._options.executor].records_samples

    @without_explicit_mesh
    def record(self, call: Call) -> Recorded:
        """Returns the samples of a call, which is one of requests, with their graphs. No request comes twice."""
        contexts = self._owner.contexts
        batch = Recorded(call, contexts.find(call.arguments, call.shared, contexts.first_granularity(None)))
        batch.record()
        return batch

    def refill(self, like: Plan, batch: Recorded) -> Plan | None:
        """Plans a batch for the program of another plan, or returns None if it does not fit."""
        return self._plannable(batch).refill(like)

    def make(self, batch: Recorded, like: Plan | Capacity | None, headroom_for: int) -> Plan:
        """Plans a batch with at least the sizes of `like`, and headroom for batches of `headroom_for` samples."""
        return self._plannable(batch).make_like(like, headroom_for)

    def _plannable(self, batch: Recorded) -> Plannable:
        return Plannable(self._owner, batch, self._options)
