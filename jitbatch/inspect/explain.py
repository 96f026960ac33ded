"""From a plan to a report. Reports are computed on demand, from the plan alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jitbatch.execute.registry import EXECUTORS
from jitbatch.inspect.advice import Explained, advise
from jitbatch.inspect.differences import descriptions
from jitbatch.inspect.executed import Executed, read_back
from jitbatch.inspect.gain import Predicted
from jitbatch.inspect.measure import StepTimes
from jitbatch.inspect.report import CellReport, ColumnReport, NodeReport, PartReport, Report, StepReport, Times
from jitbatch.ir.sources import Source
from jitbatch.ir.tables import Kind
from jitbatch.plan.plan import Plan
from jitbatch.plan.static import PlanStatic
from jitbatch.schedule.policies import POLICIES
from jitbatch.tune.flops import flops_of
from jitbatch.util import compat
from jitbatch.util.errors import PlanError
from jitbatch.util.sites import describe_source

DRAWN = 60
"""The drawing shows the largest sample with at most this many nodes. If all are larger, it shows the smallest."""


class Group(NamedTuple):
    """A cell type as the user sees it: the node kinds that were united, and the types of its parts.

    Attributes:
        kinds: the kind ids in the tables.
        cell: the kind with the most calls, as a cell with its binding.
        source: the user's code.
        calls: the number of calls in the samples, None if unknown.
        parts: the name and the kind of each part.
    """

    kinds: tuple[int, ...]
    cell: Kind
    source: Source
    calls: int | None
    parts: tuple[tuple[str, Kind], ...]


def explain_plan(
    plan: Plan, times: Times | None = None, seconds: Mapping[tuple[Kind, int], StepTimes] | None = None
) -> Report:
    """Returns the report of a plan.

    Args:
        plan: a plan of this process, with one shard.
        times: the measured times of the whole batch, or None.
        seconds: the measured times of a step, by its kind and width; None to estimate them.
    """
    static: Any = plan.static
    if not isinstance(static, PlanStatic):
        raise PlanError("an unpickled plan does not know its function: use f.explain(params, plan)")
    if plan.is_sharded:
        raise PlanError(f"the plan has {plan.shards} shards, of which one is explained: `plan.shard(0).explain()`")
    if compat.is_tracer(plan.counts):
        raise PlanError("a plan is explained outside of jax.jit: in it, its tables are not known")
    if static.types is None:
        return _explain_each(plan, times or Times())
    executed = read_back(plan)
    groups = find_groups(plan)
    predicted = Predicted(executed, EXECUTORS[static.executor].has_room)
    step_seconds = _step_seconds(predicted, seconds)
    compile_seconds = _compile_seconds(predicted, seconds)
    cells, part_of = _cells(groups, executed, step_seconds, compile_seconds, descriptions(groups, static))
    of_sample = [executed.of_sample(sample) for sample in range(len(executed.outputs))]
    drawn = _choose(of_sample)
    steps_by = _steps_by(static, executed)
    taken = max(executed.step_numbers, default=-1) + 1
    explained = Explained(
        groups=[group for group in groups if group.calls != 0],
        cells=cells,
        types=_types_of_parts(groups, executed),
        type_of={at: type_id for type_id, at in part_of.items()},
        predicted=predicted,
        static=static,
        samples=plan.summary.samples,
        memory=plan.memory,
        steps=taken,
        steps_by=steps_by,
    )
    advice, notes = advise(explained)
    return _report(
        plan,
        operations=_operations(groups, plan),
        lower_bound=sum(executed.least_steps),
        rows=len(executed.node_type),
        padded_rows=sum(step.width for step in executed.steps),
        cells=_numbered(cells),
        columns=tuple(ColumnReport(*column) for column in executed.columns),
        step_list=_step_list(executed, of_sample, step_seconds, part_of),
        sample=drawn,
        sample_nodes=_drawing(executed, of_sample[drawn] if of_sample else [], part_of),
        policy=_policy(static, taken, steps_by),
        times=times or Times(),
        measured=seconds is not None,
        memory=plan.memory,
        advice=advice,
        notes=notes,
    )


def _report(plan: Plan, **rest: Any) -> Report:
    static, summary = plan.static, plan.summary
    owner = static.owner
    name, where = describe_source(owner.__wrapped__)
    return Report(
        function=name,
        where=where,
        samples=summary.samples,
        nodes=summary.nodes,
        distinct=summary.distinct,
        steps=summary.steps,
        launches=summary.launches,
        levels=summary.levels,
        granularity=static.tables.granularity,
        executor=static.executor,
        reason=_reason(static),
        caches=owner.cache_info(),
        **rest,
    )


def _explain_each(plan: Plan, times: Times) -> Report:
    """Returns the report of a plan for the per-sample executor: one cell per structure, without batching."""
    structures = Counter(plan.static.program.samples)  # type: ignore[union-attr]
    name, where = describe_source(plan.static.owner.__wrapped__)
    cells, steps = [], []
    for structure_id, count in enumerate(structures.values()):
        part = PartReport("", count, count, count, 1, 1.0, 1, 0.0, 0, 0, 0.0, count / plan.summary.samples, 0.0)
        cells.append(CellReport(f"{name} (structure {structure_id})", where, "", count, (part,)))
        steps += [StepReport(structure_id, 0, structure_id, 0, 1, 1, 1, 0.0)] * count
    return _report(
        plan, operations=None, lower_bound=1, rows=len(steps), padded_rows=len(steps), cells=tuple(cells),
        columns=(ColumnReport(0, None),), step_list=tuple(steps), sample=0, sample_nodes=(), policy="none", times=times,
        measured=False, memory=None, advice=(),
    )  # fmt: skip


# Cells


def find_groups(plan: Plan) -> list[Group]:
    """Returns the cell types of a plan."""
    static = plan.static
    tables, types = static.tables, static.types
    assert types is not None
    called: Counter[int] = Counter()
    for graph in plan.graphs:
        called.update(graph.kind.tolist())
    by_parts: dict[tuple[int, ...], list[int]] = {}
    for kind_id in types.profile.kinds:
        by_parts.setdefault(tuple(part.kind for part in types.recipes[kind_id].parts), []).append(kind_id)
    groups = []
    for kinds in by_parts.values():
        recipe = types.recipes[kinds[0]]
        whole = len(recipe.parts) == 1
        parts = [("" if whole else part.name.rstrip("0123456789"), tables.kinds[part.kind]) for part in recipe.parts]
        first = max(kinds, key=lambda kind_id: called[kind_id])
        groups.append(
            Group(
                kinds=tuple(kinds),
                cell=tables.kinds[first],
                source=tables.sources.of(tables.kinds[first].cell),
                calls=sum(called[kind_id] for kind_id in kinds) if plan.graphs else None,
                parts=tuple(parts),
            )
        )
    return groups


def _cells(
    groups: Sequence[Group],
    executed: Executed,
    step_seconds: Sequence[float],
    compile_seconds: Mapping[int, float],
    differs: Mapping[tuple[int, ...], str],
) -> tuple[tuple[CellReport, ...], dict[int, tuple[int, int]]]:
    """Returns the reports of the cells, and for each running type the indices of its cell and part."""
    running = {step.type for step in executed.steps}  # a plan may have room for types that its batch does not use
    type_of = {kind: type_id for type_id, kind in enumerate(executed.kinds) if type_id in running}
    taken: set[int] = set()
    found: list[tuple[CellReport, list[int]]] = []
    total = sum(step_seconds) or 1.0
    for group in groups:
        typed = [(name, kind, type_of[kind]) for name, kind in group.parts if kind in type_of]
        typed = [part for part in typed if part[2] not in taken]  # equal hoists of two cells are one type
        taken.update(type_id for *_, type_id in typed)
        parts = tuple(
            _part(name, kind, type_id, executed, step_seconds, total, compile_seconds[type_id])
            for name, kind, type_id in typed
        )
        if parts:
            source, told = group.source, differs.get(group.kinds, "")
            cell = CellReport(source.name, source.where, group.cell.shapes, group.calls, parts, told)
            found.append((cell, [type_id for *_, type_id in typed]))
    found.sort(key=lambda entry: (-entry[0].compile, -entry[0].share))
    part_of = {type_id: (c, p) for c, (_, type_ids) in enumerate(found) for p, type_id in enumerate(type_ids)}
    return tuple(cell for cell, _ in found), part_of


def _types_of_parts(groups: Sequence[Group], executed: Executed) -> dict[tuple[int, ...], dict[str, int]]:
    """Returns the running types of the parts of each group, by its kinds and the name of the part."""
    running = {step.type for step in executed.steps}
    type_of = {kind: type_id for type_id, kind in enumerate(executed.kinds) if type_id in running}
    return {group.kinds: {name: type_of[kind] for name, kind in group.parts if kind in type_of} for group in groups}


def _numbered(cells: Sequence[CellReport]) -> tuple[CellReport, ...]:
    """Appends numbers to the names of cells with equal names."""
    names = Counter(cell.name for cell in cells)
    met: Counter[str] = Counter()
    numbered = []
    for cell in cells:
        met[cell.name] += 1
        name = f"{cell.name} #{met[cell.name]}" if names[cell.name] > 1 else cell.name
        numbered.append(replace(cell, name=name))
    return tuple(numbered)


def _part(
    name: str, kind: Kind, type_id: int, executed: Executed, step_seconds: Sequence[float], total: float,
    compile_seconds: float,
) -> PartReport:  # fmt: skip
    steps = [(step, at) for step, at in zip(executed.steps, step_seconds, strict=True) if step.type == type_id]
    counts: Counter[int] = Counter()  # nodes of each step; a step may have several launches
    for step, _ in steps:
        counts[step.column] += step.count
    distinct = counts.total()
    seconds = sum(at for _, at in steps)
    return PartReport(
        name=name,
        distinct=distinct,
        steps=len(counts),
        launches=len(steps),
        least_steps=executed.least_steps[type_id],
        mean_width=distinct / len(counts),
        smallest_width=min(counts.values()),
        padding=1 - distinct / sum(step.width for step, _ in steps),
        equations=len(kind.cell.jaxpr.eqns),
        flops=flops_of(kind.cell.jaxpr),
        seconds=seconds,
        share=seconds / total,
        compile=compile_seconds,
    )


def _compile_seconds(predicted: Predicted, measured: Mapping[tuple[Kind, int], StepTimes] | None) -> dict[int, float]:
    """Returns the compile time of each running type in all its widths, measured or predicted."""
    if measured is None:
        return predicted.compile_seconds
    executed = predicted.executed
    found: dict[int, float] = {}
    for type_id, width in {(step.type, step.width) for step in executed.steps}:
        kind = executed.kinds[type_id]
        seconds = measured[kind, width].compile if (kind, width) in measured else predicted.price(type_id, 1)
        found[type_id] = found.get(type_id, 0.0) + seconds
    return found


def _step_seconds(predicted: Predicted, measured: Mapping[tuple[Kind, int], StepTimes] | None) -> list[float]:
    """Returns the time of each launch, measured or predicted."""
    if measured is None:
        return predicted.launch_seconds
    return [
        measured[key].run if (key := (predicted.executed.kinds[step.type], step.width)) in measured else seconds
        for step, seconds in zip(predicted.executed.steps, predicted.launch_seconds, strict=True)
    ]


def _operations(groups: Sequence[Group], plan: Plan) -> int | None:
    """Returns the number of operations of the plain loop, or None if the plan has no graphs."""
    if not plan.graphs:
        return None
    return sum((group.calls or 0) * max(len(group.cell.cell.jaxpr.eqns), 1) for group in groups)


# Other fields of a report


def _choose(of_sample: Sequence[Sequence[int]]) -> int:
    sizes = [len(nodes) for nodes in of_sample]
    fitting = [sample_id for sample_id, size in enumerate(sizes) if size <= DRAWN]
    if fitting:
        return max(fitting, key=lambda sample_id: sizes[sample_id])
    return int(np.argmin(sizes)) if sizes else 0


def _step_list(
    executed: Executed,
    of_sample: Sequence[Sequence[int]],
    step_seconds: Sequence[float],
    part_of: Mapping[int, tuple[int, int]],
) -> tuple[StepReport, ...]:
    step_of = np.array(executed.step_numbers, np.int64)[executed.node_step]
    users = Counter(number for nodes in of_sample for number in set(step_of[nodes].tolist()))
    launches = zip(executed.steps, executed.step_numbers, step_seconds, strict=True)
    return tuple(
        StepReport(*part_of[step.type], number, step.column, step.count, step.width, users[number], seconds)
        for step, number, seconds in launches
    )


def _drawing(executed: Executed, nodes: Sequence[int], part_of: dict[int, tuple[int, int]]) -> tuple[NodeReport, ...]:
    position_of = {node: position for position, node in enumerate(nodes)}
    return tuple(
        NodeReport(
            *part_of[int(executed.node_type[node])],
            executed.step_numbers[executed.node_step[node]],
            tuple(position_of[read] for read in executed.reads[node].tolist()),
        )
        for node in nodes
    )


def _steps_by(static: PlanStatic, executed: Executed) -> dict[str, int]:
    """Returns the number of steps of this batch under other policies, counted as `Report.steps`."""
    asked = static.owner._options.policy
    only_loops = EXECUTORS[static.executor].splits_cells
    return {name: executed.steps_by(POLICIES[name], only_loops) for name in ("depth", "agenda") if name != asked}


def _policy(static: PlanStatic, taken: int, steps: Mapping[str, int]) -> str:
    asked = static.owner._options.policy
    others = " and ".join(f"{count} with policy={name!r}" for name, count in steps.items())
    why = ""
    if asked == "auto" and min(steps.values()) < taken:
        why = "; 'auto' looks for fewer steps only where they would save more time than the search takes"
    return f"{asked}: {taken} steps; it would be {others}{why}"


def _reason(static: PlanStatic) -> str:
    if static.reason:
        return static.reason
    asked = static.owner._options.executor
    if asked == static.executor:
        return f"asked for by executor={asked!r}"
    return "the default: one XLA program for all batches that fit"
