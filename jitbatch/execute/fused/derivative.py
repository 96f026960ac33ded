"""Functions with derivatives in both modes: forward mode by JAX, reverse mode by a custom rule.

A `jax.custom_vjp` has no forward mode, and a loop with a dynamic trip count has no reverse mode. So one linear
primitive, `tangents_p`, computes the tangents of the function's results. Its evaluation is JAX's forward mode of the
function. Its transposition is the custom rule.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jitbatch.util import jaxprs
from jitbatch.util.compat import is_float
from jitbatch.util.errors import PlanError

Linear = Callable[[list[Any], list[Any]], list[Any]]
"""A function of residuals and of tangents or cotangents; it is linear in the latter."""


def with_rule(
    fun: Callable[..., Any],
    forward: Callable[..., tuple[Any, Any]],
    tangents: Callable[..., Any],
    backward: Callable[..., Any],
) -> Any:
    """Returns `fun` with derivatives in both modes.

    Args:
        fun: `fun(static, *args)`, a function of a static argument and pytrees of arrays.
        forward: `forward(static, *args)` returns the results of `fun`, and residuals.
        tangents: `tangents(static, residuals, *d_args)` returns the tangents of the results.
        backward: `backward(static, residuals, d_results)` returns the cotangents of the arguments. The cotangents of
            results that are not floats are None. The returned cotangents of arguments that are not floats are ignored.
    """
    function = jax.custom_jvp(fun, nondiff_argnums=(0,))

    @partial(function.defjvp, symbolic_zeros=True)
    def rule(static: Any, primals: tuple[Any, ...], d_primals: tuple[Any, ...]) -> tuple[Any, Any]:
        results, residuals = forward(static, *primals)
        flat, tree = jax.tree.flatten(residuals)
        arguments, outputs = _Leaves(primals), _Leaves(results)
        none = [np.zeros(jnp.shape(leaf), jax.dtypes.float0) for leaf in jax.tree.leaves(primals)]

        def evaluate(flat: list[Any], d_arguments: list[Any]) -> list[Any]:
            given = arguments.unflatten(d_arguments, none)
            return outputs.floats(tangents(static, tree.unflatten(flat), *given))

        def transpose(flat: list[Any], d_outputs: list[Any]) -> list[Any]:
            given = outputs.unflatten(d_outputs, [None] * len(outputs.flows))
            return arguments.floats(backward(static, tree.unflatten(flat), given))

        inputs = arguments.floats(primals)
        d_inputs = list(map(_instantiate, arguments.floats(d_primals), inputs))
        made = _bind(
            flat, d_inputs, evaluate, _differentiated_forward(transpose), like=(inputs, outputs.floats(results))
        )
        no_tangents = [SymbolicZero(jax.typeof(leaf).to_tangent_aval()) for leaf in jax.tree.leaves(results)]
        return results, outputs.unflatten(made, no_tangents)

    return function


def _instantiate(tangent: Any, primal: Any) -> Any:
    if type(tangent) is not SymbolicZero:
        return tangent
    return jaxprs.cast(jnp.zeros(jnp.shape(primal), jnp.result_type(primal)), jaxprs.axes_of(primal))


class _Leaves:
    """The float leaves of a pytree. Only these have tangents."""

    def __init__(self, example: Any):
        leaves, self.tree = jax.tree.flatten(example)
        self.flows = [is_float(leaf) for leaf in leaves]

    def floats(self, tree: Any) -> list[Any]:
        return [leaf for leaf, flows in zip(self.tree.flatten_up_to(tree), self.flows, strict=True) if flows]

    def unflatten(self, floats: Sequence[Any], others: Sequence[Any]) -> Any:
        remaining = iter(floats)
        leaves = [next(remaining) if flows else other for flows, other in zip(self.flows, others, strict=True)]
        return self.tree.unflatten(leaves)


def _differentiated_forward(fun: Linear) -> Linear:
    """Returns the function with forward mode only. Reverse mode raises `PlanError`."""
    function = jax.custom_jvp(fun)

    @function.defjvp
    def rule(primals: Any, d_primals: Any) -> tuple[Any, Any]:
        made, d_made = jax.jvp(fun, primals, d_primals)
        return made, _without_reverse_mode(d_made)

    return function


def _without_reverse_mode(tangents: list[Any]) -> list[Any]:
    """Returns the tangents. Their transposition raises `PlanError`, since a loop computes them."""
    return _bind([], tangents, lambda _, d: d, _refuse, like=(tangents, tangents))


def _refuse(_: Any, __: Any) -> list[Any]:
    raise PlanError(
        "the derivative of a fused plan is differentiated in reverse mode. Forward mode serves there (jax.hessian, or "
        'jax.jvp of jax.grad); for reverse mode over any derivative use executor="dispatch"'
    )


tangents_p = Primitive("jitbatch_tangents")
"""Its operands are markers of the arguments and of the results, the residuals, and the tangents of the arguments."""
tangents_p.multiple_results = True


def _bind(
    residuals: list[Any], tangents: list[Any], evaluate: Linear, transpose: Linear, like: tuple[list[Any], list[Any]]
) -> list[Any]:
    # A marker is an empty array. It shows whether `jax.vmap` maps its value: then the tangent must be mapped too.
    markers = [lax.slice_in_dim(jnp.ravel(value), 0, 0) for values in like for value in values]
    return tangents_p.bind(
        *markers,
        *residuals,
        *tangents,
        counts=(len(like[0]), len(like[1]), len(residuals)),
        evaluate=evaluate,
        transpose=transpose,
        avals=tuple(map(jax.typeof, like[1])),
    )


def _split(operands: Sequence[Any], counts: tuple[int, int, int]) -> list[list[Any]]:
    """Splits operands into the markers of arguments and of results, the residuals and the tangents."""
    remaining = iter(operands)
    return [list(itertools.islice(remaining, count)) for count in counts] + [list(remaining)]


def _evaluate(*operands: Any, counts: tuple[int, int, int], evaluate: Linear, **_: Any) -> list[Any]:
    residuals, tangents = _split(operands, counts)[2:]
    return evaluate(residuals, tangents)


def _differentiate(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    given = tuple(map(ad.instantiate_zeros, tangents))
    made, d_made = jax.jvp(partial(_evaluate, **params), tuple(primals), given)
    return made, _without_reverse_mode(d_made)


def _transpose(cotangents: Any, *operands: Any, counts: tuple[int, int, int], transpose: Linear, **_: Any) -> list[Any]:
    residuals, tangents = _split(operands, counts)[2:]
    made = transpose(residuals, list(map(ad.instantiate_zeros, cotangents)))
    wanted = map(ad.is_undefined_primal, tangents)
    return [None] * sum(counts) + [value if one else None for value, one in zip(made, wanted, strict=True)]


def _batch(
    operands: Any, axes: Any, *, counts: tuple[int, int, int], evaluate: Linear, transpose: Linear, avals: Any
) -> tuple[Any, Any]:
    size = next(value.shape[axis] for value, axis in zip(operands, axes, strict=True) if axis is not None)
    argument_axes, result_axes, residual_axes, tangent_axes = _split(axes, counts)
    *markers, residuals, tangents = _split(operands, counts)
    tangents = [
        jnp.broadcast_to(value, (size, *value.shape)) if axis is None else jnp.moveaxis(value, axis, 0)
        for value, axis in zip(tangents, tangent_axes, strict=True)
    ]
    mapped = partial(jax.vmap, in_axes=(residual_axes, 0), axis_size=size)
    made = tangents_p.bind(
        *itertools.chain(*markers),
        *residuals,
        *tangents,
        counts=counts,
        evaluate=mapped(evaluate),
        transpose=mapped(transpose),
        avals=tuple(aval.update(shape=(size, *aval.shape)) for aval in avals),
    )
    is_beyond = any(d is not None and a is None for a, d in zip(argument_axes, tangent_axes, strict=True))
    out_axes = [0 if is_beyond or axis is not None else None for axis in result_axes]
    return [value if axis == 0 else value[0] for value, axis in zip(made, out_axes, strict=True)], out_axes


tangents_p.def_impl(_evaluate)
tangents_p.def_abstract_eval(lambda *_, avals, **__: avals)
ad.primitive_jvps[tangents_p] = _differentiate
ad.primitive_transposes[tangents_p] = _transpose
batching.primitive_batchers[tangents_p] = _batch
mlir.register_lowering(tangents_p, mlir.lower_fun(_evaluate, multiple_results=True))
