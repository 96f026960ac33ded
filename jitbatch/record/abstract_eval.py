"""A cache of the output avals of operations.

A function that calls `jnp` outside of decorated functions binds the same primitives, on values of the same types, for
every sample. JAX evaluates each of them once for each function and kind of shared arguments.
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
"""The number of cached operations, by primitive, parameters and input types."""

MAX_CLOSED_OVER = 1024
"""Functions that close over arrays with more elements than this are not compared."""


class _CannotBeCompared(Exception):
    """A function closes over values of one recording, or over too much data."""


class AbstractEvaluation:
    """The cache of output avals."""

    def __init__(self) -> None:
        maxsize = MAX_OPERATIONS if passes.remembers() else 0
        self._results = Cache(maxsize)
        self._custom_calls = Cache(maxsize)

    def evaluate(self, primitive: Any, inputs: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], Any]:
        """The avals of the outputs of a primitive, and its effects."""
        if primitive is compat.jit_p:  # its jaxpr has the output avals
            return _evaluate(primitive, inputs, params)
        key = (primitive, tuple(map(_input_key, inputs)), *params.items(), *map(type, params.values()))
        try:
            found = self._results.get(key)
        except TypeError:  # a parameter has no hash
            return _evaluate(primitive, inputs, params)
        if found is None:
            found = self._results.put(key, _evaluate(primitive, inputs, params))
        return found

    def custom_call(self, primitive: Any, functions: Any, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
        """A call of a function with a custom derivative, as a closed jaxpr."""
        avals = [compat.typeof(value) for value in inputs]

        # The body is traced under the current JAX settings. The sample may have changed them.
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
    """A key for a function. Functions with equal keys compute the same."""
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_function_key, value))
    if isinstance(value, dict):
        return dict, tuple((name, _function_key(value[name])) for name in sorted(value, key=str))
    if compat.is_tracer(value) or (isinstance(value, np.ndarray | jax.Array) and value.size > MAX_CLOSED_OVER):
        raise _CannotBeCompared
    return compat.callable_key(value, _function_key) if compat.is_function(value) else param_key(value)
