"""Scalars with known values during a recording: Python numbers, and results of operations on such numbers only."""

from typing import Any

import jax
import numpy as np

from jitbatch.record.values import Op, Value
from jitbatch.util import compat


class KnownNumbers:
    """The values of known scalars in one recording.

    An alias is never known, even if it refers to a known scalar: it is the argument of a call, and the next call may
    pass another number.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Op, list[Any] | None]] = {}  # by the `id` of an operation, which is kept alive

    def clear(self) -> None:
        self._known.clear()

    def find(self, value: Any) -> np.ndarray | None:
        """The value of a scalar. None if it depends on an argument or on an outer transformation."""
        if type(value) is not Value:
            return _concrete(value)
        pending = [value.source]
        while pending:  # not recursive: there may be too many operations
            op = pending[-1]
            if type(op) is not Op or not _may_be_known(op):
                return None
            makers = [operand.source for operand in op.inputs if type(operand) is Value]
            missing = [maker for maker in makers if id(maker) not in self._known]
            if missing:
                pending += missing
                continue
            self._known[id(pending.pop())] = op, self._evaluate(op)
        return self._output(value)

    def _evaluate(self, op: Op) -> list[Any] | None:
        numbers: list[Any] = []
        for operand in op.inputs:
            number = self._output(operand) if type(operand) is Value else _concrete(operand)
            if number is None:
                return None
            numbers.append(number.item() if jax.typeof(operand).weak_type else number)
        with compat.eval_context():
            outputs = op.primitive.bind(*numbers, **op.params)
        return list(map(np.asarray, outputs if op.primitive.multiple_results else [outputs]))

    def _output(self, value: Value) -> Any:
        _, outputs = self._known.get(id(value.source), (None, None))
        if outputs is None:
            return None
        return outputs[next(place for place, output in enumerate(value.source.outputs) if output is value)]


def _may_be_known(op: Op) -> bool:
    """Whether an operation computes scalars from scalars only."""
    if op.primitive is None or op.effects or op.is_users_jit or len(op.outputs) != 1:
        return False
    return all(map(_is_number, map(jax.typeof, (*op.inputs, *op.outputs))))


def _is_number(aval: Any) -> bool:
    return not aval.shape and not compat.is_prng_key(aval.dtype)


def _concrete(value: Any) -> np.ndarray | None:
    aval = jax.typeof(value)
    is_known = _is_number(aval) and not compat.is_tracer(value)
    return np.asarray(value, aval.dtype) if is_known else None
