"""Recording a call of a decorated function.

The body runs once on aliases of its arguments. If it calls no other decorated function, it is a *cell call*: its
operations are folded into cells, and each cell is a node. If it does, it is a *composite call*: what it recorded stays
in the recording, so that recursion through decorated functions needs nothing special.

Nothing is remembered here. `record/known_calls` remembers calls, and `record/replay` adds a known call to the graph.
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
    """A call whose body ran.

    Attributes:
        cells: its cells if it is a cell call; None if it is a composite call.
        result: what the body of a composite call returned.
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
        positional: how many arguments are positional.
        names: the names of the others.
        body: what the body is called with.
    """
    args, kwargs = body.arguments[:positional], dict(zip(names, body.arguments[positional:], strict=True))
    calls, first_op, exposed = recorder.calls, len(recorder.ops), len(recorder.leaks.exposed)
    result = run_body(recorder, fun, args, kwargs)
    body.check_unchanged(recorder.sample)
    is_composite = recorder.calls > calls
    # The result of a cell call is made of its cells: what the body returned must not be used, either.
    recorder.leaks.end_body(fun, exposed, body.aliases, result if is_composite else None, recorder.scope)
    if is_composite:
        return Ran(None, result)
    named = list(kwargs.values())
    return Ran(fold_body(recorder, fun, first_op, args, named, body.leaves_of, body.is_shared, result), None)


def fold_body(
    recorder: "Recorder", fun: Callable[..., Any], first_op: int, args: Sequence[Any], named: Sequence[Any],
    leaves_of: Sequence[Sequence[Any]], is_shared: Sequence[bool], result: Any,
) -> CellBody:  # fmt: skip
    """Fold the operations of a body that has ended into cells, and take them out of the recording.

    Args:
        recorder: the recording.
        fun: the function.
        first_op: how many operations there were when the body began.
        args, named: what the body was called with.
        leaves_of: the leaves of each argument.
        is_shared: for each argument whether it holds nothing but shared values.
        result: what the body returned.
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
    """Run the body of a call, in a scope of its own."""
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
