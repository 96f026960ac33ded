"""Plans for the per-sample executor (see `execute/per_sample`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.execute.per_sample import PerSampleProgram, SampleProgram
from jitbatch.execute.sizes import Sizes
from jitbatch.plan.outputs import outputs_of
from jitbatch.plan.plan import Plan
from jitbatch.plan.ragged import ragged_outputs
from jitbatch.plan.static import PlannedCall, PlanStatic, Summary, interned
from jitbatch.record.context import Context
from jitbatch.util.packed import pack


def plan_per_sample(
    planned: PlannedCall, context: Context, programs: Sequence[SampleProgram], leaves: Sequence[Sequence[Any]],
    out: str, least: Sizes, reason: str = "",
) -> Plan:  # fmt: skip
    """Makes a plan that runs one sample after the other.

    Args:
        planned: what is planned.
        context: the context of the samples.
        programs, leaves: the program and the leaves of each sample.
        out, reason: as in `PlanStatic`.
        least: the least sizes; only the items of ragged results count.
    """
    out_trees, out_classes = outputs_of(programs, context.tables, out, least)
    count = len(programs)
    out_rows, ragged = (), None
    if out == "ragged":
        size = len(out_classes[0])
        items = sum(len(program.items.trees) for program in programs)
        out_rows, ragged = ragged_outputs(programs, np.repeat(np.arange(items), size), size, least.items)
    static = PlanStatic(
        tables=context.tables,
        owner=planned.owner,
        shared_key=planned.shared_key,
        arenas=(),
        program=PerSampleProgram(tuple(programs), out_classes[0]),
        out=out,
        out_trees=out_trees,
        out_arenas=(),
        executor="per_sample",
        reason=reason,
        call=planned.call,
        types=None,
        out_classes=out_classes[0],
    )
    counts = Summary(
        samples=count,
        nodes=count,
        distinct=count,
        levels=1,
        types=len(set(programs)),
        steps=count,
        bound=0,
        launches=count,
        rows=count,
        padded_rows=count,
    )
    kept = tuple(tuple([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in arrays]) for arrays in leaves)
    return Plan(kept, pack(()), out_rows, ragged, np.array(counts, np.int32), interned(static))
