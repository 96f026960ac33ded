"""The number of floating-point operations of a cell, estimated from its jaxpr."""

import math
from typing import Any

from jitbatch.util import compat

_MOVES = {
    "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "device_put",
    "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "iota", "optimization_barrier", "pad", "pvary",
    "random_unwrap", "random_wrap", "reshape", "rev", "scatter", "select_n", "slice", "split", "squeeze",
    "stop_gradient", "transpose",
}  # fmt: skip
"""Primitives that only move data."""

_REDUCTIONS = ("reduce_", "arg", "cum")


def flops_of(closed: Any) -> int:
    """The floating-point operations of one evaluation of a closed jaxpr.

    A multiplication and addition in a contraction counts as two. Any other primitive counts one for each element that
    it computes or reduces. A `while` loop counts as one iteration, a `cond` as its costliest branch.
    """
    return sum(map(_of_equation, closed.jaxpr.eqns))


def _of_equation(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    results = sum(_size(var.aval) for var in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * results * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return 2 * results * math.prod(kernel) // max(kernel[params["dimension_numbers"].rhs_spec[0]], 1)
    if name == "cond":
        return max(map(flops_of, params["branches"]), default=0)
    inner = [value for value in params.values() if isinstance(value, compat.ClosedJaxpr)]
    if name.startswith("custom_"):
        inner = inner[:1]  # only the function, not its derivatives
    if inner:
        return params.get("length", 1) * sum(map(flops_of, inner))
    if name in _MOVES:
        return 0
    if name.startswith(_REDUCTIONS):
        return sum(_size(var.aval) for var in equation.invars)
    return results


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))
