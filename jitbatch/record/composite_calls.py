"""A faster way to record calls that are probably composite.

The body of a composite call is not folded into cells. So the call needs no forms of its arguments, and no aliases:
there would be one for each leaf of a tree at each level of the tree. If the body calls no other decorated function
after all, it is folded into cells for this call only. The next call of this kind is recorded in the usual way (see
`record/calls`).
"""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from jax.tree_util import tree_leaves

from jitbatch.record.body_arguments import check_holds
from jitbatch.record.calls import fold_body, run_body
from jitbatch.record.replay import replay
from jitbatch.record.templates import make_template
from jitbatch.record.values import Value
from jitbatch.util.key_order import flatten

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder


def composite_call(
    recorder: "Recorder", fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a call that is probably composite."""
    passed = [*args, *kwargs.values()]
    known, held = recorder.arguments.known, recorder.held.parts
    trees: list[tuple[Any, list[Any]]] = []
    changing: list[Any] = []
    for position, arg in enumerate(passed):
        if type(arg) is not Value and id(arg) not in known and id(arg) not in held:
            passed[position] = _hold(recorder, arg, trees, changing)
    calls, first_op, exposed = recorder.calls, len(recorder.ops), len(recorder.leaks.exposed)
    positional = len(args)
    named = dict(zip(kwargs, passed[positional:], strict=True)) if kwargs else kwargs
    try:
        result = run_body(recorder, fun, passed[:positional], named)
    finally:
        if changing:
            recorder.held.forget(changing)
    for arg, leaves in trees:
        check_holds(arg, leaves, recorder.sample)
    is_composite = recorder.calls > calls
    kept, caller = result if is_composite else None, recorder.caller
    if caller is None or not caller.end_body(fun, exposed, kept, recorder.scope):
        recorder.leaks.end_body(fun, exposed, (), kept, recorder.scope)
    return result if is_composite else _cell_call(recorder, fun, key, args, kwargs, passed, first_op, result)


def _hold(recorder: "Recorder", arg: Any, trees: list[tuple[Any, list[Any]]], changing: list[Any]) -> Any:
    """The argument for a body: the argument itself if all of its leaves are values.

    Args:
        recorder: the recording.
        arg: the argument.
        trees: a list that receives the mutable arguments, with their leaves.
        changing: a list that receives the mutable parts of these.
    """
    found = recorder.held.hold(arg)
    if found is not None and found[1]:
        return arg
    arg, leaves = _with_values(arg, recorder.as_value)
    trees.append((arg, leaves))
    if found is not None:
        changing += found[0]
    return arg


def _with_values(arg: Any, as_value: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """An argument, and its leaves. Numbers and arrays from outside the recording are replaced by values, in a copy."""
    leaves = tree_leaves(arg)
    if {Value}.issuperset(map(type, leaves)):
        return arg, leaves
    leaves, tree = flatten(arg)
    leaves = list(map(as_value, leaves))
    return tree.unflatten(leaves), leaves


def _cell_call(
    recorder: "Recorder", fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any],
    passed: list[Any], first_op: int, result: Any,
) -> Any:  # fmt: skip
    """Record a call that was probably composite, but whose body called no other decorated function."""
    arguments = recorder.arguments
    call = arguments.take_apart(fun, args, kwargs)
    leaves = [tree_leaves(arg) for arg in passed]
    cells = fold_body(recorder, fun, first_op, passed[: len(args)], passed[len(args) :], leaves, call.is_shared, result)
    forms, rows = arguments.describe(key, args, kwargs, is_new=True)
    recorder.composites.discard(key)
    recorder.known.function(fun).note_cell_call(forms)
    return replay(recorder, make_template(cells, call.leaves, call.positions, recorder.rows), rows, args, kwargs)
