"""From the graphs of a batch to a plan: types, analysis, lowering, and the static part around them."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jitbatch.batch.analysis import Analysis, analyse
from jitbatch.batch.inputs import pad_rows
from jitbatch.batch.types import Profile, known_types, types_of
from jitbatch.execute.executor import Executor, Lowered, SizeRequest
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.registry import EXECUTORS, GENERAL
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.verify import verify_analysis, verify_lowered, verify_steps
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.tables import Tables
from jitbatch.plan.differentiable import differentiable_classes
from jitbatch.plan.options import Options
from jitbatch.plan.outputs import outputs_of, rows_of_outputs
from jitbatch.plan.plan import Plan
from jitbatch.plan.static import PlannedCall, PlanStatic, Summary, interned
from jitbatch.schedule.policies import POLICIES
from jitbatch.util import passes


def make_plan(
    planned: PlannedCall, graphs: Sequence[Graph], inputs: Sequence[Inputs], options: Options, request: SizeRequest,
    reason: str = "",
) -> Plan:  # fmt: skip
    """Plans a batch of at least one sample.

    Args:
        planned: what is planned.
        graphs: the graph of each sample.
        inputs: the leaves of each sample that are rows.
        options: the options of planning.
        request: the sizes of the plan.
        reason: the reason for this granularity and executor, or "".
    """
    tables, least = graphs[0].tables, request.least
    out_trees, out_classes = outputs_of(graphs, tables, options.out, least)
    executor = EXECUTORS[options.executor]
    profile = _profile(graphs, least, executor)
    if not executor.runs_effects and any(tables.kinds[kind_id].cell.has_effects for kind_id in profile.kinds):
        executor, reason = EXECUTORS[GENERAL], "cells have effects"
    types = types_of(profile, [*least.exemplars, *graphs], executor.splits_cells, tuple(least.nodes), options.derives)
    input_classes = differentiable_classes([*types.exemplars, *graphs], options.differentiable, planned.call)
    analysis = analyse(graphs, inputs, types, options.dedupe, least.shared, input_classes)
    if passes.verifies():
        verify_analysis(analysis)
    assert executor.lower is not None
    lowered = executor.lower(analysis, POLICIES[options.policy], request)
    if passes.verifies():
        verify_lowered(analysis, lowered)
    rows = lowered.value_row[analysis.batch.outputs].astype(np.int32)
    classes = out_classes[0] if out_classes else ()
    out_rows, ragged = rows_of_outputs(graphs, rows, options.out, classes, least, request.headroom_for)
    arena_of = {arena.value_class: place for place, arena in enumerate(lowered.arenas)}
    static = PlanStatic(
        tables=tables,
        owner=planned.owner,
        shared_key=planned.shared_key,
        arenas=lowered.arenas,
        program=lowered.program,
        out=options.out,
        out_trees=out_trees,
        out_arenas=tuple(tuple(arena_of[class_id] for class_id in classes) for classes in out_classes),
        executor=executor.name,
        reason=reason,
        call=planned.call,
        types=types,
        out_classes=classes,
        differentiable=options.differentiable,
        differentiable_classes=input_classes,
    )
    input_rows = tuple(_input_rows(arena, analysis.packed.rows, tables) for arena in lowered.arenas)
    plan = Plan(
        rows=input_rows,
        tables=lowered.tables,
        out_rows=out_rows,
        ragged=ragged,
        counts=np.array(_summary(len(graphs), analysis, lowered), np.int32),
        static=interned(static),
        graphs=tuple(graphs),
        row_samples=static.row_samples(graphs, input_rows),
    )
    if passes.verifies():
        verify_steps(plan)
    return plan


def _profile(graphs: Sequence[Graph], least: Sizes, executor: Executor) -> Profile:
    """Returns the kinds and edges of the batch and of the least sizes. They determine the types."""
    if executor.has_room:
        known = known_types(least.profile, graphs[0].tables, executor.splits_cells, tuple(least.nodes))
        if known is not None and all(known in graph.typed for graph in graphs):
            return least.profile  # known from an earlier plan: the profile covers these graphs
    return least.profile.union(graphs)


def _summary(samples: int, analysis: Analysis, lowered: Lowered) -> Summary:
    return Summary(
        samples=samples,
        nodes=len(analysis.leader),
        distinct=len(analysis.nodes),
        levels=int(analysis.batch.level.max(initial=-1)) + 1,
        types=len(analysis.types.kinds),
        steps=lowered.steps,
        bound=lowered.bound,
        launches=lowered.launches,
        rows=len(analysis.nodes),
        padded_rows=lowered.padded_rows,
    )


def _input_rows(arena: ArenaShape, rows: Mapping[int, Any], tables: Tables) -> Any:
    """Returns the padded input rows of an arena. If the batch has no rows of its class, all rows are padding."""
    value_class = tables.classes[arena.value_class]
    none = None
    if arena.inputs and arena.value_class not in rows:
        none = (jnp if value_class.is_key else np).zeros((0, *value_class.shape), value_class.dtype)
    return pad_rows(rows.get(arena.value_class, none), arena.inputs)
