"""Padding does not contribute to derivatives.

Padding repeats a real row. No node reads its results, so their cotangents are zero. But if a derivative of the repeated
row is infinite, zero times infinity is NaN, and a gradient that is infinite in the plain loop would be NaN. So
derivatives pass only through real rows. They stop at padding in two places: at the rows that a cell reads, and at the
outputs of its weight uses, where rows meet shared operands (see `execute/weight_uses`). So the cotangents inside a
weight use are zero for padding. An operation whose derivative with respect to a shared operand may be infinite, such as
a division by it, needs a third place: a copy of that operand for each row.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from jitbatch.util import compat

CONTRACTIONS = (primitives.dot_general_p, primitives.conv_general_dilated_p)
SUMS = (primitives.add_p, primitives.add_jaxvals_p)

_LINEAR = (*CONTRACTIONS, *SUMS, primitives.sub_p, primitives.mul_p, primitives.gather_p, primitives.select_n_p)
"""Operations whose derivative with respect to a shared operand is finite for finite rows."""


def real(value: Any, is_real: Any) -> Any:
    """Returns the value of one row, without a derivative if the row is padding. The forward pass costs nothing."""
    return jnp.where(is_real, value, lax.stop_gradient(value)) if compat.is_float(value) else value


def may_be_singular(equation: Any, shared: Sequence[Any]) -> bool:
    """Whether an equation may have an infinite derivative with respect to one of its shared operands.

    False if a copy of these operands for each row would be larger than the result.
    """
    if equation.primitive in _LINEAR or any(True for _ in compat.jaxprs_in_params(equation.params)):
        return False
    largest = max(math.prod(var.aval.shape) for var in equation.outvars)
    return all(math.prod(var.aval.shape) <= largest for var in shared)
