"""The trip counts of a plan's loops. A compiled program does not know them: they are data."""

from collections import Counter
from typing import Any

import numpy as np

from jitbatch.execute.fused.shapes import LoopShape

Trips = dict[tuple[str, ...], int]
"""How often the body of a loop runs in a step: by the names that `execute/fused` gives to its loops, from the outermost
on. The first name is `"forward loop_1"` or `"backward loop_1"`, the second `"chunks_0_64"` or `"pairs_0_1"`; the loop
over the terms of a sum has no name, so that there is a third one, `""`."""


def trips_of(plan: Any) -> Trips:
    """Returns the trip counts of the loops of a fused plan."""
    trips: Counter[tuple[str, ...]] = Counter()
    tables = plan.tables.unpack()
    for number, (shape, table) in enumerate(zip(plan.static.program.phases, tables, strict=True)):
        if isinstance(shape, LoopShape):
            own = _of_loop(shape, table)
            for direction in ("forward", "backward"):
                trips.update({(f"{direction} loop_{number}", *names): count for names, count in own.items()})
    return dict(trips)


def _of_loop(shape: LoopShape, table: Any) -> Counter[tuple[str, ...]]:
    rounds = int(shape.round_count(table))
    trips: Counter[tuple[str, ...]] = Counter({(): rounds})
    ends = np.asarray(table["ends"])[:rounds]
    for number, block in enumerate(shape.blocks):
        rows = np.diff(ends[:, number], axis=-1)[:, ::-1]  # the narrowest chunks are the last ones
        starts = ends[:, number, :-1][:, ::-1]
        for width, count, begin in zip(block.widths, rows.T, starts.T, strict=False):
            name = f"chunks_{number}_{width}"
            trips[(name,)] += int(count.sum()) // width
            if block.kind.is_variadic:
                terms = np.asarray(table["operands"][number]["count"])
                places = [b + o for b, n in zip(begin, count, strict=True) for o in range(0, n, width)]
                longest = [terms[place : place + width].max(initial=0) for place in places]
                trips[(name, "")] += int(sum(max(most - 2, 0) for most in longest))
    for arena, span in enumerate(table["pair_span"]):
        if span is not None:
            for number in range(len(shape.blocks)):
                own = np.asarray(span)[:rounds, number]
                trips[(f"pairs_{number}_{arena}",)] += int(np.maximum(own[:, 1] - own[:, 0], 0).sum())
    return trips
