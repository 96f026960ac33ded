"""Evaluation of recorded jaxprs with values on a mesh, whose types differ from the recorded ones.

Jaxprs are recorded without a mesh. Under `jax.shard_map`, values vary over the axes of a mesh.

The type of a value says over which mesh axes it differs from device to device, and the operands of an operation must
agree. JAX casts the operands of `jnp` functions, but not those of an equation that is bound again. So this module
evaluates recorded equations: it casts all operands, and traces sub-jaxprs again for the cast operands.

On a mesh with explicit axes, the values that a sample closes over have these axes in their types, and so have the
sub-jaxprs that were traced with them. A batch runs with automatic axes (see `util/meshes`). So these sub-jaxprs are
traced again too, without the shardings that name explicit axes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat, meshes
from jitbatch.util.compat import is_float

Axes = frozenset[str]


def axes_of(values: Any) -> Axes:
    """The mesh axes over which any leaf of a pytree varies; none outside of `jax.shard_map`."""
    return frozenset[str]().union(*(compat.varying_axes(leaf) for leaf in jax.tree.leaves(values)))


def cast(values: Any, axes: Axes) -> Any:
    """The same pytree with every leaf varying over `axes`. The transpose of the cast is a sum over these axes."""

    def leaf_cast(leaf: Any) -> Any:
        missing = axes - compat.varying_axes(leaf)
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(leaf_cast, values) if axes else values


def evaluate(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a recorded equation."""
    axes = axes_of(list(inputs))
    if not axes and not compat.names_explicit_axes(equation):
        return compat.evaluate(equation, inputs)
    operands = cast(list(inputs), axes)
    if equation.primitive.name in compat.RESHARDINGS and compat.names_explicit_axes(equation):
        return operands
    if equation.primitive in (compat.custom_jvp_call_p, compat.custom_vjp_call_p):
        return cast(_with_own_derivative(equation, axes)(*operands), axes)
    params = {name: _retraced(value, axes) for name, value in equation.params.items()}
    return cast(compat.evaluate(equation.replace(params=params), operands), axes)


def run(jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    """The outputs of a recorded closed jaxpr."""
    if not axes_of(list(operands)) and not compat.has_explicit_axes(jaxpr.jaxpr):
        return list(compat.jaxpr_as_fun(jaxpr)(*operands))
    env = dict(zip(jaxpr.jaxpr.constvars, meshes.cast(list(jaxpr.consts)), strict=True))
    env.update(zip(jaxpr.jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, compat.Literal) else env[atom]

    for equation in jaxpr.jaxpr.eqns:
        env.update(zip(equation.outvars, evaluate(equation, list(map(read, equation.invars))), strict=True))
    return list(map(read, jaxpr.jaxpr.outvars))


def _retraced(param: Any, axes: Axes) -> Any:
    """A parameter of an equation. Jaxprs in it are traced again, for values that vary over `axes`."""
    if compat.is_explicit_sharding(param):
        return None
    if type(param) is tuple:
        return tuple(_retraced(item, axes) for item in param)
    if isinstance(param, compat.Jaxpr):
        return _retraced(compat.ClosedJaxpr(param, ()), axes).jaxpr
    if not isinstance(param, compat.ClosedJaxpr):
        return param
    structs = [compat.varying_struct(aval, axes) for aval in param.in_avals]
    return jax.make_jaxpr(lambda *operands: cast(run(param, operands), axes))(*structs)


def _with_own_derivative(equation: Any, axes: Axes) -> Callable[..., list[Any]]:
    """The function of a custom_jvp or custom_vjp equation, with its derivative rule. The rule is a Python function
    inside JAX. It is traced for operands that do not vary, and evaluated like any other recorded jaxpr."""
    avals = [atom.aval for atom in equation.invars]
    flows = [is_float(aval) for aval in avals]
    out_flows = [is_float(var.aval) for var in equation.outvars]

    def floats(values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
        return [value for value, flow in zip(values, which, strict=True) if flow]

    def primal(*inputs: Any) -> list[Any]:
        return run(equation.params["call_jaxpr"], inputs)

    def float_part(inputs: Sequence[Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
        def outputs(*float_inputs: Any) -> list[Any]:
            remaining = iter(float_inputs)
            operands = [next(remaining) if flow else value for value, flow in zip(inputs, flows, strict=True)]
            return floats(compat.evaluate(equation, operands), out_flows)

        return outputs, floats(inputs, flows)

    def push(inputs: Any, tangents: Any) -> list[Any]:
        outputs, float_inputs = float_part(inputs)
        return jax.jvp(outputs, float_inputs, tangents)[1]

    def pull(inputs: Any, cotangents: Any) -> tuple[Any, ...]:
        outputs, float_inputs = float_part(inputs)
        return jax.vjp(outputs, *float_inputs)[1](cotangents)

    def derivative(rule: Callable[..., Any], inputs: Any, others: Any, other_avals: Sequence[Any]) -> list[Any]:
        # JAX keeps the types of the first trace of a rule.
        with meshes.mesh_of_types([*avals, *other_avals]):
            structs = [[compat.struct_of(aval) for aval in a] for a in (avals, other_avals)]
            recorded = jax.make_jaxpr(rule)(*structs)
        return cast(run(recorded, [*inputs, *others]), axes)

    if equation.primitive is compat.custom_jvp_call_p:
        fun = jax.custom_jvp(primal)

        @fun.defjvp
        def _(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
            float_results = iter(derivative(push, primals, floats(tangents, flows), floats(avals, flows)))
            values = primal(*primals)
            none = [np.zeros(np.shape(value), jax.dtypes.float0) for value in values]
            return values, [next(float_results) if flow else zero for flow, zero in zip(out_flows, none, strict=True)]

        return fun
    fun = jax.custom_vjp(primal)

    def backward(inputs: Any, cotangents: Any) -> tuple[Any, ...]:
        out_avals = [var.aval for var in equation.outvars]
        float_results = iter(derivative(pull, inputs, floats(cotangents, out_flows), floats(out_avals, out_flows)))
        return tuple(next(float_results) if flow else None for flow in flows)

    fun.defvjp(lambda *inputs: (primal(*inputs), inputs), backward)
    return fun
