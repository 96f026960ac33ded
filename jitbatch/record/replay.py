"""Replay of a known call: its template adds nodes to the graph, and its body does not run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from jitbatch.record.binding import row_of
from jitbatch.record.cell_body import Argument
from jitbatch.record.templates import AnyResult, NodeOutput, SharedOutput
from jitbatch.record.values import NODE, ConstantRow, Value, new

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder


def replay(
    recorder: "Recorder", template: tuple[Any, ...], rows: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Add the nodes of a template to the graph, and return the result of the call.

    Args:
        recorder: the recording.
        template: a `Template`, or a plain tuple of its fields, which Python unpacks faster.
        rows: the row ids of the arguments, without arguments with only shared values. The list is changed.
        args, kwargs: the arguments.
    """
    (
        kinds, counts, operands, _, _, output_count, reads_arguments, further, results, make, _, form, in_order, other,
    ) = template  # fmt: skip
    builder = recorder.builder
    first = builder.node_outputs
    builder.node_outputs = end = first + output_count
    if not reads_arguments:
        rows += range(first, end)
        rows += further_rows(recorder, further)
    builder.kinds += kinds
    builder.counts += counts
    builder.operands += operands(rows)
    if recorder.scope:
        recorder.leaks.exposed += range(first, end)
    if other is not None:
        return _make_result(recorder, other, first, args, kwargs)
    values = []
    for place, aval, aval_id in results:
        value = new(Value)  # a faster `Value(...)`
        value._trace = recorder
        value.aval = aval
        value.aval_id = value.form = aval_id
        value.source = NODE
        value.row = first + place
        values.append(value)
    if make is None:
        return values[0]
    result = make(values)
    if form is not None:
        made = range(first, end) if in_order else [value.row for value in values]
        recorder.arguments.known[id(result)] = result, values, made, form, False
    return result


def further_rows(recorder: "Recorder", further: Sequence[Any]) -> list[int]:
    """The row ids of the `further` rows of a template."""
    return [row_of(row, recorder.rows) for row in further]


def _make_result(
    recorder: "Recorder", result: AnyResult, first: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A result with arbitrary leaves; `first` is the row id of the first node output of the call."""
    arguments = jax.tree.leaves((*args, *kwargs.values()))
    outputs: dict[int, Value] = {}
    leaves: list[Any] = []
    for leaf in result.leaves:
        match leaf:
            case Argument():
                leaves.append(arguments[leaf.leaf])
            case NodeOutput(place, aval, aval_id):
                if place not in outputs:
                    outputs[place] = Value(recorder, aval, aval_id, NODE, first + place, aval_id)
                leaves.append(outputs[place])
            case SharedOutput(form, aval, aval_id):
                leaves.append(Value(recorder, aval, aval_id, NODE, None, form))
            case ConstantRow():
                leaves.append(recorder.value(leaf.aval, leaf))
            case _:
                leaves.append(leaf)
    return result.out_tree.unflatten(leaves)
