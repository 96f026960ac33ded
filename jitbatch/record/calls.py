"""Recording of a call of a decorated function.

The body runs once, on aliases of its arguments. There are two cases. In a *cell call*, the body calls no other
decorated function: its operations are folded into cells, and each cell is a node. In a *composite call*, the body calls
other decorated functions: its operations stay in the recording, so recursion through decorated functions needs no
special handling.

This module caches nothing. `record/known_calls` caches calls, and `record/replay` adds a known call to the graph.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jitbatch.record.body_arguments import BodyArguments
from jitbatch.record.cell_body import CellBody, check_returned, make_cell_body
from jitbatch.record.list_arguments import list_elements
from jitbatch.record.running_totals import apart

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder


class Ran(NamedTuple):
    """The outcome of running the body of a call.

    Attributes:
        cells: the cells of a cell call; None for a composite call.
        result: the return value of a composite call; None for a cell call.
    """

    cells: CellBody | None
    result: Any


def record_call(
    recorder: "Recorder", fun: Callable[..., Any], positional: int, names: Sequence[str], body: BodyArguments
) -> Ran:
    """Run the body of a call, and fold it into cells if it calls no other decorated function.

    Args:
        recorder: the recording.
        fun: the function.
        positional: the number of positional arguments.
        names: the names of the keyword arguments.
        body: the arguments of the body.
    """
    args, kwargs = body.arguments[:positional], dict(zip(names, body.arguments[positional:], strict=True))
    calls, first_op, exposed = recorder.calls, len(recorder.ops), len(recorder.leaks.exposed)
    result = run_body(recorder, fun, args, kwargs)
    body.check_unchanged(recorder.sample)
    is_composite = recorder.calls > calls
    # The result of a cell call is rebuilt from its cells, so the body's own return value is hidden, too.
    recorder.leaks.end_body(fun, exposed, body.aliases, result if is_composite else None, recorder.scope)
    if is_composite:
        return Ran(None, result)
    named = list(kwargs.values())
    return Ran(fold_body(recorder, fun, first_op, args, named, body.leaves_of, body.is_shared, result), None)


def fold_body(
    recorder: "Recorder", fun: Callable[..., Any], first_op: int, args: Sequence[Any], named: Sequence[Any],
    leaves_of: Sequence[Sequence[Any]], is_shared: Sequence[bool], result: Any,
) -> CellBody:  # fmt: skip
    """Remove the operations of a finished body from the recording, and fold them into cells.

    Args:
        recorder: the recording.
        fun: the function.
        first_op: the number of operations before the body.
        args, named: the arguments of the body.
        leaves_of: the leaves of each argument.
        is_shared: for each argument, whether all of its leaves are shared values.
        result: the return value of the body.
    """
    check_returned(fun, result, recorder.sample)
    ops = recorder.ops[first_op:]
    del recorder.ops[first_op:]
    elements = list_elements(fun, args, named, is_shared)
    leaves = [leaf for of_argument in leaves_of for leaf in of_argument]
    pairs = zip(leaves_of, is_shared, strict=True)
    shared = {id(leaf) for of_argument, are_shared in pairs if are_shared for leaf in of_argument}
    return make_cell_body(fun, ops, leaves, elements, shared, result, recorder.tables)


def run_body(recorder: "Recorder", fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the body of a call, in its own scope."""
    first_op, outer = len(recorder.ops), recorder.scope
    recorder.scopes += 1
    recorder.scope = recorder.scopes
    try:
        result = fun(*args, **kwargs)
    finally:
        recorder.scope = outer
    if len(recorder.ops) > first_op:
        recorder.ops[first_op:] = apart(recorder.ops[first_op:])
    return result
