"""Programs of the dispatch executor in saved plans."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitbatch.execute.dispatch import DispatchProgram, StepShape
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.tables import Kind, Tables
from jitbatch.plan.capacity import Names
from jitbatch.plan.saved.checks import TableChecks, check, classes_read, classes_written, shared_fit
from jitbatch.plan.saved.content import Content, SavedStep
from jitbatch.plan.saved.format import ProgramFormat
from jitbatch.plan.saved.schema import with_names
from jitbatch.plan.saved.values import CHANGED
from jitbatch.util.errors import PlanError
from jitbatch.util.rounding import round_up


def _save(program: DispatchProgram, names: Names) -> tuple[SavedStep, ...]:
    return tuple(
        SavedStep(
            with_names(step.kind, names), step.width, step.flows, len(step.kind.cell.out_avals), step.kind.is_variadic
        )
        for step in program.step_shapes
    )


def _load(
    content: Content, with_kinds: Callable[[Any], Any], sizes: Sizes, arenas: Sequence[ArenaShape], tables: Tables
) -> DispatchProgram:
    steps = [(with_kinds(step.kind), step) for step in content.steps or ()]
    _check_kinds(steps, arenas, tables)
    classes = tuple(tables.classes[arena.value_class] for arena in arenas)
    return DispatchProgram(tuple(StepShape(kind, step.width, step.flows) for kind, step in steps), classes)


def _check_sizes(content: Content) -> None:
    """Raises `PlanError` for sizes of steps that no plan has."""
    for step in content.steps or ():
        check(step.width >= 1 and step.outputs >= 0, "the size of a step")
        check(len(step.flows) == step.kind.rows, "the operands of a step")


def _check_tables(content: Content, plan_tables: Any, tables: TableChecks) -> None:
    """Raises `PlanError` if tables do not fit the steps."""
    steps: Any = content.steps
    check(plan_tables.keys() == {"operands", "starts", "counts"}, "the tables of steps")
    operands, starts = plan_tables["operands"], plan_tables["starts"]
    check(len(steps) == len(operands) == len(starts), "tables for each step")
    tables.check(plan_tables["counts"], (len(steps),), 2**31, "how many nodes there are")
    most = max((arena.capacity for arena in content.arenas), default=0)
    written = 0
    for step, rows, at in zip(steps, operands, starts, strict=True):
        tables.check(rows, (2, None) if step.is_sum else (step.kind.rows, step.width), 2**31, "operands")
        check(np.all((rows[..., :1, :] if step.is_sum else rows) < most), "operands: a row that is not there")
        if step.is_sum:
            sums = rows[..., 1, :]
            check(sums.max(initial=0) <= step.width <= round_up(rows.shape[-1]), "the sums of terms")
            check(np.all(np.diff(sums, axis=-1) >= 0), "the order of terms")
        tables.check(at, (step.outputs,), most, "where the rows of a step begin")
        written += step.width * step.outputs
    for arena in content.arenas:
        least = len(arena.shared) + arena.inputs
        check(least <= arena.capacity <= round_up(least + written), "the rows of an arena")


def _check_kinds(steps: Sequence[tuple[Kind, SavedStep]], arenas: Sequence[ArenaShape], tables: Tables) -> None:
    """Raises `PlanError` if the kinds of steps do not fit the arenas."""
    fits = shared_fit(arenas, tables)
    capacity = {arena.value_class: arena.capacity for arena in arenas}
    for kind, step in steps:
        written = classes_written(kind, tables)
        fits &= (kind.is_variadic, len(written)) == (step.is_sum, step.outputs)
        fits &= capacity.keys() >= {*classes_read(kind, tables), *written}
        fits &= all(step.width <= capacity.get(arena, 0) for arena in written)
    if not fits:
        raise PlanError(f"what was saved does not fit: {CHANGED}")


DISPATCH_FORMAT = ProgramFormat("steps", _save, _load, _check_sizes, _check_tables)
