"""The fused executor: a batch as one compiled program."""

from collections.abc import Sequence
from typing import Any

import jax

from jitbatch.batch.analysis import Analysis
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.execute.arenas import run_in_arenas
from jitbatch.execute.executor import Executor, Lowered, Refilled, SizeRequest
from jitbatch.execute.fused import lower
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.ir.cell import Identity
from jitbatch.ir.input_rows import Inputs
from jitbatch.schedule.policies import Policy
from jitbatch.util.caches import Cache

_programs = Cache(256)
"""By the static parts of plans, which are equal for plans that one compilation serves."""


def run_compiled(plan: Any, shared_leaves: Sequence[Any]) -> Any:
    """The outputs of a plan, by one compiled program."""
    static = plan.static
    if static.tables.holds_tracers:  # the program is of no use later
        return jax.jit(run_in_arenas)(plan, shared_leaves)
    return _programs.get_or_make(static, lambda: jax.jit(run_in_arenas))(plan, shared_leaves)


def _lower(analysis: Analysis, policy: Policy, request: SizeRequest) -> Lowered:
    return lower.lower(analysis, policy, request.least, request.static_loops, request.headroom_for)


_layouts = Cache(256)
"""The layouts of tables, by the identity of static parts of plans: a layout refers to the types of one of them."""


def _refill(
    static: Any, graphs: Sequence[TypedGraph], inputs: Sequence[Inputs], policy: Policy, dedupe: bool
) -> Refilled | None:
    layout = _layouts.get_or_make(Identity(static), lambda: TableLayout(static.types, static.program, static.arenas))
    return lower.refill(layout, graphs, inputs, policy, dedupe)


FUSED = Executor("fused", _lower, run_compiled, _refill, splits_cells=True, has_room=True, runs_effects=False)
