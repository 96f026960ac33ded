"""Plan inputs that may not be differentiated: an error for a derivative of an input that is not declared
`differentiable`."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jitbatch.plan.plan import Plan
from jitbatch.util import compat
from jitbatch.util.errors import PlanError


@jax.custom_jvp
def _constant(rows: Any) -> Any:
    return rows


@_constant.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise PlanError(
        "a plan's inputs are constants, but they are differentiated. Name those that are to be differentiated when "
        "the plan is made, f.plan(..., differentiable=...), and differentiate with respect to plan.inputs; or call "
        ".batch on the samples themselves"
    )


def with_constant_inputs(plan: Plan) -> Plan:
    """Returns the plan with inputs that raise `PlanError` when they are differentiated.

    Inside `jax.jit`, only a later transformation shows whether inputs are differentiated. So the check is part of the
    traced computation.
    """

    def constant(leaf: Any) -> Any:
        differentiable = compat.is_tracer(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return _constant(leaf) if differentiable else leaf

    free = plan.static.differentiable_arenas
    if not free:
        return replace(plan, rows=jax.tree.map(constant, plan.rows))
    return replace(plan, rows=tuple(one if place in free else constant(one) for place, one in enumerate(plan.rows)))
