"""The fused executor: one compiled program per batch, shared by batches with equal static parts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from jitbatch.batch.analysis import Analysis
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.execute.arenas import run_in_arenas
from jitbatch.execute.executor import Executor, Lowered, Refilled, SizeRequest
from jitbatch.execute.fused import lower
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.execute.fused.targets import GPU, TARGETS
from jitbatch.ir.cell import Identity
from jitbatch.ir.input_rows import Inputs
from jitbatch.schedule.policies import Policy
from jitbatch.util.caches import Cache

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch

_programs = Cache(256)
"""The compiled programs, by the static parts of plans."""


def run_compiled(plan: Any, shared_leaves: Sequence[Any]) -> Any:
    """Runs a plan as one compiled program and returns its outputs."""
    static = plan.static
    if static.tables.holds_tracers:  # the program cannot be reused
        return jax.jit(run_in_arenas)(plan, shared_leaves)
    return _programs.get_or_make(static, lambda: jax.jit(run_in_arenas))(plan, shared_leaves)


def _lower(analysis: Analysis, policy: Policy, request: SizeRequest) -> Lowered:
    target = TARGETS.get(request.platform, GPU)
    is_static = target.static_loops if request.static_loops is None else request.static_loops
    return lower.lower(analysis, policy, request.least, target, is_static, request.headroom_for)


_layouts = Cache(256)
"""The table layouts, by the identity of the static parts of plans: a layout refers to the types of one static part."""


def _layout_of(static: Any) -> TableLayout:
    return _layouts.get_or_make(
        Identity(static),
        lambda: TableLayout(static.types, static.program, static.arenas, static.differentiable_classes),
    )


def _refill(
    static: Any, graphs: Sequence[TypedGraph], inputs: Sequence[Inputs], policy: Policy, dedupe: bool
) -> Refilled | None:
    return lower.refill(_layout_of(static), graphs, inputs, policy, dedupe)


def _refill_known(static: Any, samples: "KnownBatch", policy: Policy, dedupe: bool) -> Refilled | None:
    return lower.refill_known(_layout_of(static), samples, policy, dedupe)


FUSED = Executor(
    "fused", _lower, run_compiled, _refill, _refill_known, splits_cells=True, has_room=True, runs_effects=False
)
