"""From samples to a plan for the program of another plan: only the dynamic part is new."""

from jitbatch.execute.batch_samples import BatchSamples
from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.verify import verify_steps
from jitbatch.plan.differentiable import differentiable_classes
from jitbatch.plan.options import Options
from jitbatch.plan.outputs import outputs_of, rows_of_outputs
from jitbatch.plan.plan import Plan
from jitbatch.plan.static import PlanStatic
from jitbatch.schedule.policies import POLICIES
from jitbatch.util import passes


def refill_plan(like: Plan, samples: BatchSamples, options: Options) -> Plan | None:
    """Plans a batch for the program of another plan, and reuses its static part.

    Args:
        like: a plan of the same function, with one shard.
        samples: the samples, at least one.
        options: the options of planning.

    Returns:
        The plan, or None if the batch does not fit the program.
    """
    static, executor = like.static, EXECUTORS[options.executor]
    if executor.refill is None or static.types is None or not _is_for(static, options):
        return None
    if options.differentiable and not set(
        differentiable_classes(samples.graphs, options.differentiable, static.call)
    ) <= set(static.differentiable_classes):
        return None
    fitting = samples.fit(static.types, are_constants=not options.differentiable)
    if fitting is None:
        return None
    graphs = fitting.graphs_of_outputs if static.out == "stack" else fitting.graphs
    trees, classes = outputs_of(graphs, static.tables, static.out, like.sizes)
    if trees != static.out_trees or not _are_output_classes(static, classes):
        return None
    refilled = executor.refill(static, fitting, POLICIES[options.policy], options.dedupe)
    if refilled is None:
        return None
    out_rows, ragged = rows_of_outputs(
        fitting.graphs, refilled.output_rows, static.out, classes[0] if classes else (), like.sizes, 0
    )
    if ragged is not None and like.ragged is not None and ragged.mask.shape != like.ragged.mask.shape:
        return None
    if static.out == "rows" and list(map(len, out_rows)) != list(map(len, like.out_rows)):
        return None
    plan = Plan(
        rows=refilled.inputs,
        tables=refilled.tables,
        out_rows=out_rows,
        ragged=ragged,
        counts=refilled.counts,
        static=static,
        graphs=tuple(fitting.graphs),
        row_samples=static.row_samples(fitting.graphs, refilled.inputs),
    )
    if passes.verifies():
        verify_steps(plan)
    return plan


def _is_for(static: PlanStatic, options: Options) -> bool:
    """Whether plans with this static part are made with these options."""
    asked = options.executor, options.out, options.differentiable
    return (static.executor, static.out, static.differentiable) == asked


def _are_output_classes(static: PlanStatic, classes: list[tuple[int, ...]]) -> bool:
    """Whether these are the value classes of each result's leaves."""
    return all(
        [static.arenas[arena].value_class for arena in arenas] == list(class_ids)
        for arenas, class_ids in zip(static.out_arenas, classes, strict=True)
    )
