"""Rows of padding, kept out of derivatives.

Padding repeats a real row, and its results are not read, so their cotangents are zero. But where a derivative of that
row is infinite, zero times that is NaN, and a gradient that is infinite in the plain loop would be NaN. So derivatives
pass through real rows alone: at the rows that a cell reads, and where rows have met shared operands, which have one
gradient for all rows (see `execute/weight_uses`). Before that point cotangents are zero, and only an operation whose
derivative in a shared operand may be infinite, such as a division by it, needs more: that operand for each row.
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
"""Their derivative in a shared operand is made of rows, and infinite only if these are."""


def real(value: Any, is_real: Any) -> Any:
    """A value of one row; no derivative passes through it if the row is padding. It costs nothing forwards."""
    return jnp.where(is_real, value, lax.stop_gradient(value)) if compat.is_float(value) else value


def may_be_singular(equation: Any, shared: Sequence[Any]) -> bool:
    """Whether an equation may have an infinite derivative in one of these operands, and they, made one for each row,
    are no larger than its result."""
    if equation.primitive in _LINEAR or any(True for _ in compat.jaxprs_in_params(equation.params)):
        return False
    largest = max(math.prod(var.aval.shape) for var in equation.outvars)
    return all(math.prod(var.aval.shape) <= largest for var in shared)
