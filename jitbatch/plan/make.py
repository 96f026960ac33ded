"""From the graphs of a batch to a plan: types, analysis, lowering, and the static part around them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jitbatch.batch.analysis import Analysis, analyse
from jitbatch.batch.inputs import pad_rows
from jitbatch.batch.retype import typed
from jitbatch.batch.types import Profile, known_types, types_of
from jitbatch.core.choice import is_compiled
from jitbatch.execute.executor import ArenaShape, Executor, Lowered, SizeRequest
from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.verify import verify_analysis, verify_lowered, verify_steps
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.tables import Tables
from jitbatch.plan.differentiable import differentiable_classes, samples_of_rows
from jitbatch.plan.outputs import outputs_of, rows_of_outputs
from jitbatch.plan.plan import Plan
from jitbatch.plan.static import PlanStatic, Summary, interned
from jitbatch.record.arguments import Arguments
from jitbatch.schedule.policies import POLICIES
from jitbatch.util import passes
from jitbatch.util.platforms import platform_of

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch


@dataclass(frozen=True)
class Options:
    """The options of planning; see `jitbatch`."""

    policy: str
    executor: str
    dedupe: bool
    out: str
    loops: str = "auto"
    platform: str = "auto"
    differentiable: tuple[str, ...] = ()
    derives: bool = True
    """Whether plans may be differentiated."""

    @property
    def static_loops(self) -> bool | None:
        """Whether loops have static trip counts; None for the default of the platform."""
        return None if self.loops == "auto" else self.loops == "static"

    def platform_for(self, shared_leaves: Sequence[Any]) -> str:
        """Returns the platform that a plan is made for."""
        return platform_of(shared_leaves) if self.platform == "auto" else self.platform


class Planned(NamedTuple):
    """The function of a plan, the key of its shared arguments, and the layout of its arguments."""

    owner: Any
    shared_key: Any
    call: Arguments


def make_plan(
    planned: Planned, graphs: Sequence[Graph], inputs: Sequence[Inputs], options: Options, request: SizeRequest,
    reason: str = "",
) -> Plan:  # fmt: skip
    """Plans a batch of at least one sample.

    Args:
        planned: the function and its arguments.
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
        executor, reason = EXECUTORS["dispatch"], "cells have effects"
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
    plan = Plan(
        rows=tuple(_input_rows(arena, analysis.packed.rows, tables) for arena in lowered.arenas),
        tables=lowered.tables,
        out_rows=out_rows,
        ragged=ragged,
        counts=np.array(_summary(len(graphs), analysis, lowered), np.int32),
        static=interned(static),
        graphs=tuple(graphs),
    )
    plan = _with_row_samples(plan)
    if passes.verifies():
        verify_steps(plan)
    return plan


def refill_plan(
    like: Plan, graphs: Sequence[Graph], inputs: Callable[[], Sequence[Inputs]], options: Options,
    known: "KnownBatch | None" = None,
) -> Plan | None:  # fmt: skip
    """Plans a batch for the program of another plan, and reuses its static part.

    Args:
        like: a plan of the same function, with one shard.
        graphs, options: as for `make_plan`.
        inputs: returns the leaves of each sample that are rows.
        known: the samples in the core, which has their leaves; None if it does not know all of them.

    Returns:
        The plan, or None if the batch does not fit the program.
    """
    static, executor = like.static, EXECUTORS[options.executor]
    types = static.types
    own = (static.executor, static.out, static.differentiable)
    if executor.refill is None or types is None or own != (options.executor, options.out, options.differentiable):
        return None
    if options.differentiable and not set(differentiable_classes(graphs, options.differentiable, static.call)) <= set(
        static.differentiable_classes
    ):
        return None
    if options.differentiable or not is_compiled(types.table):
        known = None
    if known is None or known.lacks(types.table):
        unknown = [graph for graph in graphs if types not in graph.typed]
        if unknown and types.profile.union(unknown) != types.profile:
            return None
        if known is not None:
            known.put_typed(typed(graphs, types))
    is_alike = known is not None and static.out == "stack" and known.output >= 0
    alike = graphs[:1] if is_alike else graphs
    out_trees, out_classes = outputs_of(alike, static.tables, static.out, like.sizes)
    arenas = static.out_arenas
    is_same = out_trees == static.out_trees and all(
        [static.arenas[arena].value_class for arena in own] == list(classes)
        for own, classes in zip(arenas, out_classes, strict=True)
    )
    if not is_same:
        return None
    policy = POLICIES[options.policy]
    if known is None or executor.refill_known is None:
        refilled = executor.refill(static, typed(graphs, types), inputs(), policy, options.dedupe)
    else:
        refilled = executor.refill_known(static, known, policy, options.dedupe)
    if refilled is None:
        return None
    classes = out_classes[0] if out_classes else ()
    out_rows, ragged = rows_of_outputs(graphs, refilled.output_rows, static.out, classes, like.sizes, 0)
    if ragged is not None and like.ragged is not None and ragged.mask.shape != like.ragged.mask.shape:
        return None
    if static.out == "rows" and list(map(len, out_rows)) != list(map(len, like.out_rows)):
        return None
    plan = Plan(refilled.inputs, refilled.tables, out_rows, ragged, refilled.counts, static, tuple(graphs))
    plan = _with_row_samples(plan)
    if passes.verifies():
        verify_steps(plan)
    return plan


def _with_row_samples(plan: Plan) -> Plan:
    """Returns the plan with its `row_samples`."""
    static = plan.static
    if not static.differentiable:
        return plan
    classes = [static.arenas[place].value_class for place in static.differentiable_arenas]
    sizes = {class_id: len(rows) for class_id, rows in zip(classes, plan.inputs, strict=True)}
    found = samples_of_rows(plan.graphs, static.differentiable, static.call, sizes)
    return replace(plan, row_samples=tuple(found.values()))


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
