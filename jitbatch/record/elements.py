"""Recording of a function that is called on each element of a list.

The function runs once, on the first element. For elements of the same types, its operations are repeated with other
inputs. This takes a fraction of the time that JAX takes to trace the function.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jitbatch.record.recorder import Recorder
from jitbatch.record.values import Op, Value

_loops = itertools.count(-1, -1)
"""Ids of loops over elements, which are negative. Other turns have the `id` of an object, which is positive."""


def record_each(recorder: Recorder, fun: Callable[..., Any], elements: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of a function for each element of a list. An element is a tuple of arguments.

    The operations on one element form a separate group (`Op.turn`), so that there is one group for each element.
    """
    loop = next(_loops)
    if not _are_alike(elements):
        return [_record_first(recorder, fun, element, (loop, number))[1] for number, element in enumerate(elements)]
    aliases = tuple([Value(recorder, v.aval, v.aval_id, v, v.row, v.form) for v in elements[0]])
    ops, result = _record_first(recorder, fun, aliases, (loop, 0))
    leaves, tree = jax.tree.flatten(result)
    results = [result]
    for number, element in enumerate(elements[1:], 1):
        made = _record_again(recorder, ops, dict(zip(map(id, aliases), element, strict=True)), (loop, number))
        results.append(tree.unflatten([made.get(id(leaf), leaf) for leaf in leaves]))
    own = dict(zip(map(id, aliases), elements[0], strict=True))
    for op in ops:
        op.inputs = [own.get(id(value), value) for value in op.inputs]
    return results


def _are_alike(elements: Sequence[tuple[Any, ...]]) -> bool:
    """Whether all elements consist of values of the same types."""
    if not all(type(value) is Value for element in elements for value in element):
        return False
    return len({tuple([value.aval_id for value in element]) for element in elements}) == 1


def _record_first(
    recorder: Recorder, fun: Callable[..., Any], element: tuple[Any, ...], turn: tuple[int, int]
) -> tuple[list[Op], Any]:
    """Run the function on an element. Returns the recorded operations and the result."""
    before = len(recorder.ops)
    result = fun(*element)
    ops = recorder.ops[before:]
    own = set(map(id, element))
    for op in ops:
        op.turn = turn
        op.common = tuple([place for place, value in enumerate(op.inputs) if id(value) not in own])
        own.update(map(id, op.outputs))
    return ops, result


def _record_again(recorder: Recorder, ops: Sequence[Op], made: dict[int, Any], turn: tuple[int, int]) -> dict[int, Any]:
    """Repeat operations for another element. `made` maps the `id` of each value of the first element to its
    counterpart."""
    for known in ops:
        op = recorder.repeat(known, [made.get(id(value), value) for value in known.inputs])
        op.turn, op.common = turn, known.common
        made.update(zip(map(id, known.outputs), op.outputs, strict=True))
    return made
