"""The fused executor: a batch becomes one compiled program, shared by batches with equal static parts, and its tables.

See `execute/fused/program` for the program.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.batch.inputs import pack_inputs
from jitbatch.batch.problem import problem_of
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.execute.arenas import run_in_arenas
from jitbatch.execute.batch_samples import BatchSamples
from jitbatch.execute.executor import Executor, Lowered, Refilled, SizeRequest
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.execute.fused.program import FusedProgram
from jitbatch.execute.fused.sizing import size_program
from jitbatch.execute.fused.targets import GPU, TARGETS
from jitbatch.execute.program import RefillableStatic, Runnable
from jitbatch.ir.cell import Identity
from jitbatch.ir.input_rows import Inputs
from jitbatch.schedule.policies import Policy
from jitbatch.schedule.rounds import find_rounds
from jitbatch.util import passes
from jitbatch.util.caches import Cache
from jitbatch.util.errors import VerifyError

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch


def lower(analysis: Analysis, policy: Policy, request: SizeRequest) -> Lowered:
    """Lowers a batch to a program with its tables.

    Args:
        analysis: the analysed batch.
        policy: the policy for rounds.
        request: the least sizes, and what the program is made for.
    """
    target = TARGETS.get(request.platform, GPU)
    static_loops = target.static_loops if request.static_loops is None else request.static_loops
    schedule = analysis.batch.schedule()
    find_rounds(schedule, analysis.types, policy, lambda: analysis.problem)
    program, arenas = size_program(analysis, schedule, request.least, target, static_loops, request.headroom_for)
    layout = TableLayout(analysis.types, program, arenas)
    buffer = np.empty(layout.size, np.int32)
    filled = schedule.fill(layout.core, buffer)
    if filled is None:
        raise VerifyError("lowering: a batch fits the program that was sized for it")
    return Lowered(
        program, layout.tables(buffer), arenas, filled.value_row, filled.steps, schedule.bound, filled.launches,
        filled.padded_rows,
    )  # fmt: skip


_layouts = Cache(256)
"""The table layouts, by the identity of the static parts of plans: a layout refers to the types of one static part."""


def refill(static: RefillableStatic, samples: BatchSamples, policy: Policy, dedupe: bool) -> Refilled | None:
    """Computes the tables of an existing plan's program for another batch."""
    layout = _layout_of(static)
    if samples.in_core is not None:
        return _refill_in_core(layout, samples.in_core, policy, dedupe)
    return refill_layout(layout, samples.typed(layout.types), samples.flatten(), policy, dedupe)


def _layout_of(static: RefillableStatic) -> TableLayout:
    types, program = static.types, static.program
    assert types is not None
    assert isinstance(program, FusedProgram)
    return _layouts.get_or_make(
        Identity(static), lambda: TableLayout(types, program, static.arenas, static.differentiable_classes)
    )


def _refill_in_core(layout: TableLayout, samples: "KnownBatch", policy: Policy, dedupe: bool) -> Refilled | None:
    """As `refill_layout`, for samples that the compiled core knows, with typed graphs: in two calls of the core."""
    if not layout.is_for_constants:
        return None
    joined = layout.refill().join(samples, dedupe)
    if passes.verifies() or not (policy.by_ranks and joined.by_ranks()):
        find_rounds(joined.schedule, layout.types, policy, lambda: problem_of(joined.batch))
    rows = layout.input_rows()
    buffer, outputs = np.empty(layout.size, np.int32), np.empty(samples.results, np.int32)
    counts = np.empty(10, np.int32)
    on_host = [array if type(array) is np.ndarray else None for array in rows]
    if not joined.fill(buffer, on_host, outputs, counts):
        return None
    return Refilled(tuple(rows), layout.tables(buffer), outputs, counts)


def refill_layout(
    layout: TableLayout, graphs: Sequence[TypedGraph], inputs: Sequence[Inputs], policy: Policy, dedupe: bool
) -> Refilled | None:
    """Computes the tables of an existing program for another batch.

    Args:
        layout: the layout of the program's tables.
        graphs: the graphs of the samples, with the types of the program (see `batch/retype`).
        inputs: the leaves of each sample that are rows.
        policy: the policy for rounds.
        dedupe: whether equal calls are merged.

    Returns:
        The tables and input rows, or None if the batch does not fit the program.
    """
    types, tables = layout.types, layout.types.exemplars[0].tables
    packed = pack_inputs(inputs, types, tables, layout.differentiable)
    if packed.is_traced or not layout.has_flows(packed.active):
        return None
    batch = types.table.batch(graphs, packed.read, *layout.shared_positions(packed.classes), dedupe)
    if any(packed.read.count(arena.value_class) > arena.inputs for arena in layout.arenas):
        return None
    schedule = batch.schedule()
    find_rounds(schedule, types, policy, lambda: problem_of(batch))
    buffer = np.empty(layout.size, np.int32)
    filled = schedule.fill(layout.core, buffer)
    if filled is None:
        return None
    counts = (
        len(graphs), batch.node_count, batch.distinct_count, batch.levels, len(types.kinds), filled.steps,
        schedule.bound, filled.launches, batch.distinct_count, filled.padded_rows,
    )  # fmt: skip
    return Refilled(
        inputs=tuple(packed.padded(arena.value_class, arena.inputs) for arena in layout.arenas),
        tables=layout.tables(buffer),
        output_rows=filled.output_rows,
        counts=np.array(counts, np.int32),
    )


_programs = Cache(256)
"""The compiled programs, by the static parts of plans."""


def run_compiled(plan: Runnable, shared_leaves: Sequence[Any]) -> Any:
    """Runs a plan as one compiled program and returns its outputs."""
    static = plan.static
    if static.tables.holds_tracers:  # the program cannot be reused
        return jax.jit(run_in_arenas)(plan, shared_leaves)
    return _programs.get_or_make(static, lambda: jax.jit(run_in_arenas))(plan, shared_leaves)


FUSED = Executor("fused", lower, run_compiled, refill, splits_cells=True, has_room=True, runs_effects=False)
