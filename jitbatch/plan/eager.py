"""Eager execution of plans: programs do not depend on the exact number of samples.

A call of `.batch` may have any number of samples. The plan has room for a rounded number (see `plan/rooms`), and the
program returns this number of rows for each output. The host removes the padding: on the device, every number of
samples would need its own program.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jitbatch.plan.plan import Plan
from jitbatch.plan.static import interned
from jitbatch.util import compat


def on_grid(count: int) -> int:
    """Rounds up to 1, 4, 16, 64, ...

    >>> [on_grid(count) for count in (1, 2, 4, 5, 64, 65)]
    [1, 4, 4, 16, 64, 256]
    """
    size = 1
    while size < count:
        size *= 4
    return size


def run_eagerly(plan: Plan, run: Callable[[Plan], list[Any]]) -> Any:
    """Returns the outputs of a plan for the fused executor.

    Args:
        plan: the plan.
        run: runs a plan with `out="rows"` and returns the rows of each output.
    """
    static = plan.static
    if static.out == "list":
        return _as_list(plan, run)
    columns = list(zip(static.out_arenas[0], plan.out_rows, strict=True))
    taken = [_cut(rows, len(column)) for rows, (_, column) in zip(_take(plan, columns, run), columns, strict=True)]
    outputs = static.out_trees[0].unflatten(taken)
    return outputs if plan.ragged is None else replace(plan.ragged, rows=outputs)


def _as_list(plan: Plan, run: Callable[[Plan], list[Any]]) -> list[Any]:
    static = plan.static
    wanted: dict[int, list[int]] = {}
    for arenas, rows in zip(static.out_arenas, plan.out_rows, strict=True):
        for arena, row in zip(arenas, rows, strict=True):
            wanted.setdefault(arena, []).append(int(row))
    columns = [(arena, np.array(rows, np.int32)) for arena, rows in sorted(wanted.items())]
    taken = {arena: iter(rows) for (arena, _), rows in zip(columns, _take(plan, columns, run), strict=True)}
    return [
        tree.unflatten([next(taken[arena]) for arena in arenas])
        for tree, arenas in zip(static.out_trees, static.out_arenas, strict=True)
    ]


def _take(plan: Plan, columns: Sequence[tuple[int, Any]], run: Callable[[Plan], list[Any]]) -> list[Any]:
    """Runs the plan and returns rows of arenas. The number of rows of each column is rounded up by `on_grid`."""
    arenas = tuple(arena for arena, _ in columns)
    static = interned(replace(plan.static, out="rows", out_trees=(), out_arenas=(arenas,)))
    padded = tuple(np.pad(rows, (0, on_grid(len(rows)) - len(rows)), mode="edge") for _, rows in columns)
    return run(replace(plan, out_rows=padded, ragged=None, static=static))


def _cut(rows: Any, count: int) -> Any:
    """Returns the first `count` rows of an array. Concrete arrays on one device are cut on the host."""
    if len(rows) == count:
        return rows
    is_on_host = not (compat.is_tracer(rows) or compat.is_prng_key(rows.dtype)) and len(rows.devices()) == 1
    return jax.device_put(np.asarray(rows)[:count], rows.sharding) if is_on_host else rows[:count]
