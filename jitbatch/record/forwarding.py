"""Outputs of an operation that are unchanged inputs.

The transformations of Flax (`nnx.jit`, `nnx.remat`, `nnx.scan`, ...) pass the variables of a module into the
transformed function, return them, and assign the returned variables to the module. An unchanged variable is both an
input and an output of the operation. Such an output is replaced by the input, so that no state seems to change.
"""

from typing import Any

from jax.extend.core import primitives

from jitbatch.ir.cell import Identity
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache


def handed_through(primitive: Any, params: dict[str, Any]) -> dict[int, int]:
    """The outputs of an operation that are unchanged inputs, each with the index of the input."""
    if primitive is compat.jit_p or primitive is primitives.remat_p:
        return _of_jaxpr(params["jaxpr"])
    if primitive is primitives.cond_p:  # after the index, if all branches do it
        first, *others = [_of_jaxpr(branch) for branch in params["branches"]]
        return {out: place + 1 for out, place in first.items() if all(other.get(out) == place for other in others)}
    if primitive is primitives.scan_p:
        return _of_carry(params["jaxpr"], params["num_consts"], params["num_carry"], params["num_consts"])
    if primitive is primitives.while_p:
        body, consts = params["body_jaxpr"], params["body_nconsts"]
        return _of_carry(body, consts, len(body.out_avals), consts + params["cond_nconsts"])
    return {}


def origin(jaxpr: Any, var: Any) -> Any:
    """The variable that a variable of a jaxpr is equal to, followed through operations that pass it on unchanged."""
    makers = {out: (equation, place) for equation in jaxpr.eqns for place, out in enumerate(equation.outvars)}
    while var in makers:
        equation, place = makers[var]
        input_place = handed_through(equation.primitive, equation.params).get(place)
        if input_place is None:
            return var
        var = equation.invars[input_place]
        if isinstance(var, compat.Literal):
            return None
    return var


_known = Cache(1024)


def _of_jaxpr(jaxpr: Any) -> dict[int, int]:
    """The outputs of a jaxpr that are unchanged inputs. Cached by identity, because JAX reuses jaxprs."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, compat.ClosedJaxpr) else jaxpr
    return passes.remembered(_known, Identity(jaxpr), lambda: _find(jaxpr))


def _find(jaxpr: Any) -> dict[int, int]:
    places = {var: place for place, var in enumerate(jaxpr.invars)}
    origins = [None if isinstance(atom, compat.Literal) else origin(jaxpr, atom) for atom in jaxpr.outvars]
    return {out: places[var] for out, var in enumerate(origins) if var in places}


def _of_carry(body: Any, consts: int, carried: int, first: int) -> dict[int, int]:
    """The carried values of a loop that every turn leaves unchanged. Among the inputs, they follow `first` others."""
    same = _of_jaxpr(body)
    return {place: first + place for place in range(carried) if same.get(place) == consts + place}
