"""Functions with derivatives in both modes: forward mode by JAX, reverse mode by a custom rule.

A `jax.custom_vjp` has no forward mode, and a loop with a dynamic trip count has no reverse mode. So one linear
primitive, `tangents_p`, computes the tangents of the function's results. Its evaluation is JAX's forward mode of the
function. Its transposition is the custom rule.

For a function y = f(x) with the Jacobian J:

    jvp             dx -> J dx                   forward mode, by JAX
    vjp             dy -> Jᵀ dy                  its transposition, the custom rule
    hvp             dx -> H dx                   H = d(Jᵀ dy)/dx, the Hessian of x -> dy · f(x)

Second derivatives are linear, too. The tangents of the first two functions, in x and in their operand, are

    of jvp          (dx', dx'') -> H' + J dx''            where H' = d(J dx)/dx along dx'
    of vjp          (dx', dy'') -> H dx' + Jᵀ dy''

Forward mode over either mode evaluates them, by JAX. Their transpositions have the cotangent z:

    of jvp          z -> (H dx with z for dy, Jᵀ z)
    of vjp          z -> (H z, J z)                       since a Hessian is symmetric

These are `hvp`, which is forward mode over the custom rule, with `vjp` and `jvp`. So reverse mode over either mode
needs no reverse mode of the custom rule.
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
    again: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]],
    backward: Callable[..., Any],
) -> Any:
    """Returns `fun` with derivatives in both modes.

    Args:
        fun: `fun(static, *args)`, a function of a static argument and pytrees of arrays.
        forward: `forward(static, *args)` returns the results of `fun`, and what else `backward` needs.
        again: `again(results, args)` returns arguments with which `fun` has the same results. They are kept for the
            derivatives in place of `args`.
        backward: `backward(static, args, saved, d_results)` returns the cotangents of the arguments, from what `again`
            and `forward` returned. The cotangents of results that are not floats are None. The returned cotangents of
            arguments that are not floats are ignored.
    """
    function = jax.custom_jvp(fun, nondiff_argnums=(0,))
    saving = jax.custom_jvp(forward, nondiff_argnums=(0,))

    def differentiate(static: Any, primals: tuple[Any, ...], d_primals: tuple[Any, ...]) -> Any:
        results, saved = saving(static, *primals)
        bound = partial(fun, static), partial(forward, static), again, partial(backward, static)
        modes = _Modes(*bound, primals=primals, results=results)
        return (results, saved), modes.tangents(again(results, primals), saved, d_primals)

    @partial(function.defjvp, symbolic_zeros=True)
    def rule(static: Any, primals: tuple[Any, ...], d_primals: tuple[Any, ...]) -> tuple[Any, Any]:
        (results, _), d_results = differentiate(static, primals, d_primals)
        return results, d_results

    @partial(saving.defjvp, symbolic_zeros=True)
    def saving_rule(static: Any, primals: tuple[Any, ...], d_primals: tuple[Any, ...]) -> tuple[Any, Any]:
        results, d_results = differentiate(static, primals, d_primals)
        return results, (d_results, jax.tree.map(_no_tangent, results[1]))  # `_Modes` recomputes the saved values

    return function


class _Modes:
    """The derivatives of a function of some arguments, as functions of lists of float leaves.

    With the names at the head of this module: `jvp` is `J dx`, `vjp` is `Jᵀ dy`, and `hvp` is `H dx`.
    """

    def __init__(
        self, fun: Callable[..., Any], forward: Callable[..., Any], again: Callable[..., Any],
        backward: Callable[..., Any], primals: tuple[Any, ...], results: Any,
    ):  # fmt: skip
        self.fun, self.forward, self.again, self.backward = fun, forward, again, backward
        self.arguments, self.results = _Leaves(primals), _Leaves(results)
        self.primals = primals
        self.values = results

    def jvp(self, args: Any, d_args: list[Any]) -> list[Any]:
        """`J dx`: the tangents of the results."""
        return self.results.floats(jax.jvp(self.fun, args, self._tangents_of(args, d_args))[1])

    def vjp(self, args: Any, saved: Any, d_results: list[Any]) -> list[Any]:
        """`Jᵀ dy`: the cotangents of the arguments."""
        cotangents = self.results.unflatten(d_results, [None] * len(self.results.flows))
        return self.arguments.floats(self.backward(args, saved, cotangents))

    def vjp_from_inputs(self, args: Any, d_results: list[Any]) -> list[Any]:
        """`vjp` as a function of the arguments alone."""
        results, saved = self.forward(*args)
        return self.vjp(self.again(results, args), saved, d_results)

    def hvp(self, args: Any, d_results: list[Any], d_args: list[Any]) -> list[Any]:
        """`H dx`: the derivative of the cotangents `Jᵀ dy` along `d_args`."""
        vjp = partial(self.vjp_from_inputs, d_results=d_results)
        return jax.jvp(vjp, (args,), (self._tangents_of(args, d_args),))[1]

    def tangents(self, args: Any, saved: Any, d_primals: Any) -> Any:
        """The tangents of the results, as one linear operation with derivatives in both modes."""
        flat, tree = jax.tree.flatten((args, saved))
        inputs, outputs = self.arguments.floats(self.primals), self.results.floats(self.values)
        d_inputs = list(map(_instantiate, self.arguments.floats(d_primals), inputs))

        @jax.custom_jvp
        def evaluate(flat: list[Any], d_args: list[Any]) -> list[Any]:
            return self.jvp(tree.unflatten(flat)[0], d_args)

        @evaluate.defjvp
        def of_evaluate(primals: Any, tangents: Any) -> tuple[Any, Any]:
            results = evaluate(*primals)
            return results, self._second(primals, tangents, tree, self.jvp, self._transposed_jvp, results)

        @jax.custom_jvp
        def transpose(flat: list[Any], d_results: list[Any]) -> list[Any]:
            args, saved = tree.unflatten(flat)
            return self.vjp(args, saved, d_results)

        @transpose.defjvp
        def of_transpose(primals: Any, tangents: Any) -> tuple[Any, Any]:
            results = transpose(*primals)
            return results, self._second(primals, tangents, tree, self.vjp_from_inputs, self._transposed_vjp, results)

        results = _bind(flat, d_inputs, evaluate, transpose, like=(inputs, outputs))
        return self.results.unflatten(results, list(map(_no_tangent, jax.tree.leaves(self.values))))

    def _transposed_jvp(self, args: Any, saved: Any, d_args: list[Any], d_results: list[Any]) -> list[Any]:
        return [*self.hvp(args, d_results, d_args), *self.vjp(args, saved, d_results)]

    def _transposed_vjp(self, args: Any, saved: Any, d_results: list[Any], d_args: list[Any]) -> list[Any]:
        return [*self.hvp(args, d_results, d_args), *self.jvp(args, d_args)]

    def _second(
        self, primals: Any, tangents: Any, tree: Any, fun: Callable[..., Any], transposed: Callable[..., Any],
        results: list[Any],
    ) -> list[Any]:  # fmt: skip
        """The tangents of `jvp` or `vjp`, as one linear operation of the tangents of both its operands.

        Args:
            primals, tangents: of the flat arguments and saved values, and of the operand that is linear.
            tree: the tree of the former.
            fun: `jvp` or `vjp`, as a function of the arguments and the linear operand.
            transposed: the transposition, a function of the arguments, saved values, linear operand and cotangents.
            results: of `fun`.
        """
        (flat, linear), (d_flat, d_linear) = primals, tangents
        args = tree.unflatten(flat)[0]
        inputs, d_inputs = self.arguments.floats(args), self.arguments.floats(tree.unflatten(d_flat)[0])
        count = len(inputs)

        def evaluate(residuals: list[Any], d_operands: list[Any]) -> list[Any]:
            args, linear = tree.unflatten(residuals[: len(flat)])[0], residuals[len(flat) :]
            return jax.jvp(fun, (args, linear), (self._tangents_of(args, d_operands[:count]), d_operands[count:]))[1]

        def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
            args, saved = tree.unflatten(residuals[: len(flat)])
            return transposed(args, saved, residuals[len(flat) :], cotangents)

        rules = _differentiated_forward(evaluate), _differentiated_forward(transpose)
        return _bind([*flat, *linear], [*d_inputs, *d_linear], *rules, like=([*inputs, *linear], results))

    def _tangents_of(self, args: Any, floats: list[Any]) -> Any:
        none = [np.zeros(jnp.shape(leaf), jax.dtypes.float0) for leaf in jax.tree.leaves(args)]
        return self.arguments.unflatten(floats, none)


def _no_tangent(value: Any) -> SymbolicZero:
    return SymbolicZero(jax.typeof(value).to_tangent_aval())


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
        results, d_results = jax.jvp(fun, primals, d_primals)
        return results, _without_reverse_mode(d_results)

    return function


def _without_reverse_mode(tangents: list[Any]) -> list[Any]:
    """Returns the tangents. Their transposition raises `PlanError`, since a loop computes them."""
    return _bind([], tangents, lambda _, d: d, _refuse, like=(tangents, tangents))


def _refuse(_: Any, __: Any) -> list[Any]:
    raise PlanError(
        "a second derivative of a fused plan is differentiated in reverse mode. Forward mode serves there; for reverse "
        'mode of any order use executor="dispatch"'
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
    d_operands = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(partial(_evaluate, **params), tuple(primals), d_operands)


def _transpose(cotangents: Any, *operands: Any, counts: tuple[int, int, int], transpose: Linear, **_: Any) -> list[Any]:
    residuals, tangents = _split(operands, counts)[2:]
    d_linear = transpose(residuals, list(map(ad.instantiate_zeros, cotangents)))
    wanted = map(ad.is_undefined_primal, tangents)
    return [None] * sum(counts) + [
        value if is_wanted else None for value, is_wanted in zip(d_linear, wanted, strict=True)
    ]


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
    results = tangents_p.bind(
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
    return [value if axis == 0 else value[0] for value, axis in zip(results, out_axes, strict=True)], out_axes


tangents_p.def_impl(_evaluate)
tangents_p.def_abstract_eval(lambda *_, avals, **__: avals)
ad.primitive_jvps[tangents_p] = _differentiate
ad.primitive_transposes[tangents_p] = _transpose
batching.primitive_batchers[tangents_p] = _batch
mlir.register_lowering(tangents_p, mlir.lower_fun(_evaluate, multiple_results=True))
