"""Plans that run one sample after the other (see `execute/per_sample`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.execute.per_sample import PerSampleProgram, SampleProgram
from jitbatch.execute.sizes import Sizes
from jitbatch.plan.plan import Like, Plan, outputs_of
from jitbatch.plan.ragged import ragged_outputs
from jitbatch.plan.static import PlanStatic, Summary, interned
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.util.packed import pack


def plan_each(
    owner: Any, shared_key: Any, call: Arguments, context: Context, programs: Sequence[SampleProgram],
    leaves: Sequence[Sequence[Any]], out: str, like: Like | None = None, reason: str = "",
) -> Plan:  # fmt: skip
    """A plan that runs one sample after the other."""
    like = like or Like(Sizes())
    out_trees, out_classes = outputs_of(programs, context.tables, out, like.item)
    count = len(programs)
    out_rows, ragged = (), None
    if out == "ragged":
        size = len(out_classes[0])
        number = sum(len(one.items.trees) for one in programs)
        out_rows, ragged = ragged_outputs(programs, np.repeat(np.arange(number), size), size, like.items)
    static = PlanStatic(
        tables=context.tables,
        owner=owner,
        shared_key=shared_key,
        arenas=(),
        program=PerSampleProgram(tuple(programs), out_classes[0]),
        out=out,
        out_trees=out_trees,
        out_arenas=(),
        executor="per_sample",
        reason=reason,
        call=call,
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
    kept = tuple(tuple([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in one]) for one in leaves)
    return Plan(kept, pack(()), out_rows, ragged, np.array(counts, np.int32), interned(static))
