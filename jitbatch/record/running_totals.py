"""Running totals: several additions as one operation during recording.

`total = total + term` in a loop, or Python's `sum`, computes one addition for each term. If an addition adds to the
result of the previous addition at the same place in the code, the previous operation gets one more term. If something
reads an intermediate total, the operation is split into additions again.
"""

from collections.abc import Callable, Iterator, Sequence

from jax.extend.core import primitives

from jitbatch.record.values import Op, Value


def is_total(op: Op, value: Value, scope: int) -> bool:
    """Whether a value is a row, and the latest output of an addition in this scope."""
    return op.primitive is primitives.add_p and op.outputs[0] is value and op.scope == scope and value.row is not None


def continue_total(op: Op, term: Value, result: Value, at: int) -> None:
    """Add one more term. The list of operations must contain the operation once for each addition."""
    if not op.totals:
        op.inputs, op.totals = list(op.inputs), []
    op.inputs.append(term)  # type: ignore[attr-defined]
    op.totals.append((op.outputs[0], op.at))  # type: ignore[attr-defined]
    op.outputs, op.at = [result], at


def apart(ops: Sequence[Op], which: Callable[[Op], bool] = lambda op: True) -> list[Op]:
    """The operations, with running totals split into additions."""
    additions: dict[int, Iterator[Op]] = {}
    result = []
    for op in ops:
        if op.totals and which(op):
            if id(op) not in additions:
                additions[id(op)] = iter(_additions(op))
            op = next(additions[id(op)])
        result.append(op)
    return result


def _additions(op: Op) -> list[Op]:
    total, result = op.inputs[0], []
    for term, (value, at) in zip(op.inputs[1:], (*op.totals, (op.outputs[0], op.at)), strict=True):
        addition = Op([total, term], op.scope, at, op.site)
        addition.primitive, addition.params, addition.outputs = op.primitive, op.params, [value]
        value.source = addition
        result.append(addition)
        total = value
    return result
