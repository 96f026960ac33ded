"""Folding recorded operations into one jaxpr."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.record.values import Op, Value, root
from jitbatch.util import compat, passes
from jitbatch.util.array_leaves import plain_aval
from jitbatch.util.caches import Cache


def fold(
    ops: Sequence[Op], parameters: Sequence[Value], outputs: Sequence[Value], name: str,
    resolve: Callable[[Any], Any] = lambda value: value, keep_dead_code: bool = False,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Operations as a closed jaxpr without constants, and its operands.

    The operands are first the used parameters, in order, then all other inputs, in the order of their first use.
    Scalars become literals. Larger closed-over arrays become operands, so that no cell holds an array.
    """
    env: dict[int, Any] = {}
    free: list[Any] = []
    free_vars: list[Any] = []
    equations: list[Any] = []
    parameter_vars = [compat.Var(p.aval) for p in parameters]
    for parameter, var in zip(parameters, parameter_vars, strict=True):
        env[id(parameter)] = var

    def read(value: Any) -> Any:
        value = resolve(value)
        atom = env.get(id(value))
        if atom is None:
            constant = root(value)
            if type(constant) is not Value:
                scalar = literal(constant)
                if scalar is not None:
                    return scalar
            atom = env[id(value)] = compat.Var(plain_aval(value))
            free.append(value)
            free_vars.append(atom)
        return atom

    for op in ops:
        inputs = [read(value) for value in op.inputs]
        if op.index is not None:
            out_vars = inline(_index_jaxpr(op.inputs[0].aval, op.index), inputs, equations)
        elif is_inlined(op):
            out_vars = inline(op.params["jaxpr"], inputs, equations)
        else:
            out_vars = [compat.Var(value.aval) for value in op.outputs]
            equations.append(compat.make_equation(inputs, out_vars, op.primitive, op.params, op.effects))
        for value, var in zip(op.outputs, out_vars, strict=True):
            env[id(value)] = var
    out_atoms = [read(value) for value in outputs]
    jaxpr = compat.make_jaxpr([*parameter_vars, *free_vars], out_atoms, equations, name)
    operands = [*parameters, *free]
    if not keep_dead_code:
        live, used = compat.dead_code_eliminated(jaxpr.jaxpr, [True] * len(out_atoms))
        jaxpr = compat.make_jaxpr(live.invars, live.outvars, live.eqns, name)
        operands = [operand for operand, is_used in zip(operands, used, strict=True) if is_used]
    return jaxpr, operands


def is_inlined(op: Op) -> bool:
    """Whether an operation is a jit whose equations take its place. The functions of jnp are jits with `inline=True`:
    inlined, `a + b` is the same cell as `lax.add(a, b)`."""
    return op.primitive is compat.jit_p and op.params["inline"] and not op.params["jaxpr"].consts


def literal(value: Any) -> Any:
    """A scalar as a literal. None for other values."""
    aval = compat.typeof(value)
    if compat.is_tracer(value) or aval.shape or compat.is_prng_key(aval.dtype):
        return None
    scalar = np.asarray(value, dtype=aval.dtype)[()]
    return compat.Literal(scalar.item() if aval.weak_type else scalar, aval)


_index_jaxprs = Cache(1024)


def _index_jaxpr(aval: Any, index: int | range) -> Any:
    """`x[index]` along axis 0 as a jaxpr of `lax` operations."""

    def make() -> Any:
        def take(x: Any) -> Any:
            if isinstance(index, int):
                return jax.lax.index_in_dim(x, index, axis=0, keepdims=False)
            if index.step > 0:
                return jax.lax.slice_in_dim(x, index.start, max(index.stop, index.start), index.step)
            return jax.lax.rev(jax.lax.slice_in_dim(x, index[-1], index[0] + 1, -index.step) if index else x[:0], (0,))

        return jax.make_jaxpr(take)(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type))

    return passes.remembered(_index_jaxprs, (aval, index), make)


def inline(closed: Any, inputs: Sequence[Any], equations: list[Any], open_jits: bool = False) -> list[Any]:
    """Append the equations of a jaxpr, with other inputs. Returns its outputs as variables.

    With `open_jits`, nested jits are replaced by their equations, at any depth.
    """
    env = dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, compat.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        given = [read(atom) for atom in eqn.invars]
        if open_jits and eqn.primitive is compat.jit_p and not eqn.params["jaxpr"].consts:
            outputs = inline(eqn.params["jaxpr"], given, equations, open_jits)
        else:
            outputs = [compat.Var(var.aval) for var in eqn.outvars]
            equations.append(compat.make_equation(given, outputs, eqn.primitive, eqn.params, eqn.effects))
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]
