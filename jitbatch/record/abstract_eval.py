"""The avals of the outputs of operations, which are remembered.

A function that calls `jnp` outside of decorated functions binds the same primitives on values of the same types for
every sample. What JAX says of them is asked once for each function and kind of shared arguments.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.ir.cell import Identity, param_key
from jitbatch.record.values import Value
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache

MAX_OPERATIONS = 1024
"""Operations on values of certain types that are remembered."""

MAX_CLOSED_OVER = 1024
"""Functions that close over arrays with more elements are not compared."""


class _CannotBeCompared(Exception):
    """A function closes over what belongs to one recording, or over much."""


class AbstractEvaluation:
    """The avals of operations that were asked of JAX."""

    def __init__(self) -> None:
        maxsize = MAX_OPERATIONS if passes.remembers() else 0
        self._results = Cache(maxsize)
        self._custom_calls = Cache(maxsize)

    def evaluate(self, primitive: Any, inputs: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], Any]:
        """The avals of the outputs of a primitive, and its effects."""
        if primitive is compat.jit_p:  # which knows them
            return _evaluate(primitive, inputs, params)
        key = (primitive, tuple(map(_input_key, inputs)), *params.items(), *map(type, params.values()))
        try:
            found = self._results.get(key)
        except TypeError:  # something in the parameters has no hash
            return _evaluate(primitive, inputs, params)
        if found is None:
            found = self._results.put(key, _evaluate(primitive, inputs, params))
        return found

    def custom_call(self, primitive: Any, functions: Any, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
        """A call of a function with a derivative of its own, as a closed jaxpr."""
        avals = [compat.typeof(value) for value in inputs]

        # The body is traced under JAX's settings, which may have been changed inside the sample.
        settings = Identity(compat.trace_context())
        try:
            key = primitive, _function_key(functions), tuple(avals), _function_key(params), settings
        except _CannotBeCompared:
            return compat.trace_custom_call(primitive, functions, avals, params)
        found = self._custom_calls.get(key)
        if found is None:
            closed = compat.trace_custom_call(primitive, functions, avals, params)
            found = self._custom_calls.put(key, (closed, compat.stored_results(functions)))
        else:
            compat.store_results(functions, found[1])
        return found[0]


def _evaluate(primitive: Any, inputs: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], Any]:
    made, effects = compat.abstract_eval(primitive, list(map(compat.typeof, inputs)), params)
    return list(map(compat.without_explicit_axes, made)), effects


def _input_key(value: Any) -> Hashable:
    return value.aval_id if type(value) is Value else compat.typeof(value)


def _function_key(value: Any) -> Hashable:
    """A key under which functions are equal if they do the same."""
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_function_key, value))
    if isinstance(value, dict):
        return dict, tuple((name, _function_key(value[name])) for name in sorted(value, key=str))
    if compat.is_tracer(value) or (isinstance(value, np.ndarray | jax.Array) and value.size > MAX_CLOSED_OVER):
        raise _CannotBeCompared
    return compat.callable_key(value, _function_key) if compat.is_function(value) else param_key(value)
