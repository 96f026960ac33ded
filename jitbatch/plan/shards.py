"""Plans for several devices: the stacked leaves of several plans with equal static parts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.execute.executor import SizeRequest
from jitbatch.plan.plan import Plan
from jitbatch.util.errors import PlanError

MAX_ROUNDS = 4
"""The limit of planning rounds until all shards have one static part. Two rounds were enough in all known cases."""


def split(count: int, shards: int) -> list[slice]:
    """Returns the samples of each shard, as slices."""
    if shards < 1 or count % shards:
        raise PlanError(f"{count} samples cannot be split into {shards} shards of equal size")
    size = count // shards
    return [slice(size * i, size * (i + 1)) for i in range(shards)]


def plan_shards(make: Callable[[slice, SizeRequest], Plan], parts: Sequence[slice], request: SizeRequest) -> Plan:
    """Makes one plan for all shards.

    Args:
        make: plans some of the samples with requested sizes.
        parts: the samples of each shard.
        request: the sizes of the first plan.
    """
    plans: list[Plan] = []
    for _ in range(MAX_ROUNDS):
        earlier, plans = plans, []
        for shard, part in enumerate(parts):
            same = earlier and earlier[shard].static == earlier[-1].static
            plan = earlier[shard] if same else make(part, request)
            plans.append(plan)
            request = replace(request, least=plan.sizes, headroom_for=0)
        if all(plan.static == plans[0].static for plan in plans):
            return _stack_all(plans)
    raise PlanError(
        "the shards' plans are not for one program. Shards need the fused executor (cells with effects are not run by "
        "it), and results of equal structure"
    )


def stacked(plans: Iterable[Plan | None]) -> Plan | None:
    """Returns one plan for all shards, whose static parts are one object; None if a shard has no plan."""
    found: list[Plan] = []
    for plan in plans:
        if plan is None:
            return None
        found.append(plan)
    return _stack_all(found)


def _stack_all(plans: Sequence[Plan]) -> Plan:
    return replace(jax.tree.map(_stack, *plans), graphs=tuple(graph for plan in plans for graph in plan.graphs))


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else jnp.stack(leaves)
