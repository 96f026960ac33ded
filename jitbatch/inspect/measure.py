"""Timing of a whole plan, and of each of its steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jitbatch.execute.arenas import shared_values
from jitbatch.inspect.executed import read_back
from jitbatch.ir.tables import ROW, Kind
from jitbatch.plan.plan import Plan
from jitbatch.util import compat, meshes

REPEATS = 5

SHORTEST = 1e-7
"""The least time of a step in seconds. Shorter times are within the overhead of a call."""


def best_of(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Returns the time of the fastest run in seconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - start)
    return best


def time_run(run: Callable[[], Any]) -> tuple[float, float]:
    """Returns the times of compiling and of running, in seconds. Only the first run compiles."""
    first = best_of(run, 1)
    again = best_of(run)
    return max(first - again, 0.0), again


class StepTimes(NamedTuple):
    """The times to run and to compile a vmapped cell, in seconds."""

    run: float
    compile: float


def time_steps(plan: Plan, shared_leaves: Sequence[Any]) -> Mapping[tuple[Kind, int], StepTimes]:
    """Measures the steps of a plan.

    The time of a step is that of its vmapped cell on rows of zeros, minus the overhead of a jitted call. Reductions,
    and cells with effects or random keys, are left out.

    Returns:
        The times by kind and width.
    """
    return dict(meshes.run(_time_steps, plan, list(shared_leaves)))


def _time_steps(plan: Plan, shared_leaves: Sequence[Any]) -> list[tuple[tuple[Kind, int], StepTimes]]:
    executed = read_back(plan)
    wanted = {(executed.kinds[step.type], step.width) for step in executed.steps}
    shared_ids = {shared_id for kind, _ in wanted for shared_id in kind.shared_ids}
    shared = shared_values(plan.static.tables, tuple(sorted(shared_ids)), shared_leaves)
    call = jax.jit(lambda x: x)
    call(0.0)
    calling = best_of(lambda: call(0.0))
    return [((kind, width), _time_step(kind, width, shared, calling)) for kind, width in wanted if _can_be_timed(kind)]


def _can_be_timed(kind: Kind) -> bool:
    keys = any(compat.is_prng_key(aval.dtype) for aval in kind.cell.in_avals)
    return not kind.is_variadic and not kind.cell.has_effects and not keys


def _time_step(kind: Kind, width: int, shared: Mapping[int, Any], calling: float) -> StepTimes:
    operands = [
        jnp.zeros((width, *aval.shape), aval.dtype) if bound == ROW else shared[bound]
        for aval, bound in zip(kind.cell.in_avals, kind.binding, strict=True)
    ]
    axes = tuple(0 if is_row else None for is_row in kind.vmapped)
    step = jax.jit(jax.vmap(kind.cell, in_axes=axes, axis_size=width))
    compilation, run = time_run(lambda: step(*operands))
    return StepTimes(max(run - calling, SHORTEST), compilation)
