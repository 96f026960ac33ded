"""A plan's inputs are constants: differentiation with respect to them raises an error."""

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
        "a plan's inputs are constants, but they are differentiated. To differentiate with respect to samples, call "
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

    return replace(plan, inputs=jax.tree.map(constant, plan.inputs))
