"""The body of a decorated function that calls no other one, as cells: a `Leaf`."""

from collections.abc import Callable
from typing import Any

import jax

from jitbatch.ir.cell import ReductionCell, intern_cell
from jitbatch.ir.tables import Tables
from jitbatch.record.fold import fold
from jitbatch.record.list_arguments import Element, open_body
from jitbatch.record.notes import note_call
from jitbatch.record.templates import Argument, Leaf, Made, Step
from jitbatch.record.values import ConstantRow, Op, Value, within_body
from jitbatch.util.array_leaves import described, is_array
from jitbatch.util.errors import OutputError
from jitbatch.util.key_order import flatten
from jitbatch.util.sites import describe_function, describe_source


def make_leaf(
    fun: Callable[..., Any], body: list[Op], aliases: list[Any], elements: list[Element | None], shared: set[int],
    result: Any, tables: Tables, sample: str,
) -> Leaf:  # fmt: skip
    """The leaf that a call is.

    Args:
        fun: what was called.
        body: what it recorded.
        aliases: the leaves of its arguments, as it saw them.
        elements: of each the element of a list that it belongs to.
        shared: the `id`s of those that are shared.
        result: what it returned.
        tables: those of the recording.
        sample: what is recorded, for an error.
    """
    check_returned(fun, result, sample)
    leaves, out_tree = flatten(result)
    argument = {id(alias): i for i, alias in enumerate(aliases) if type(alias) is Value}
    made = {id(value) for op in body for value in op.outputs}
    name, where = getattr(fun, "__qualname__", "cell"), describe_source(fun)[1]
    parameters = [alias for alias in aliases if type(alias) is Value]
    element_of = {id(alias): element for alias, element in zip(aliases, elements, strict=True)}
    opened = open_body(body, leaves, element_of, shared, name, where)
    if opened is None:
        outputs = [leaf for leaf in leaves if id(leaf) in made]
        opened = []
        if outputs or any(op.effects for op in body):
            jaxpr, operands = fold(body, parameters, outputs, getattr(fun, "__name__", "cell"))
            opened = [(intern_cell(jaxpr, name, where), operands, outputs)]

    places: dict[int, Any] = {key: Argument(i) for key, i in argument.items()}
    steps: list[Step] = []

    def place(value: Any) -> Any:
        value = within_body(value, argument)
        if type(value) is Value and isinstance(value.source, ConstantRow):
            return value.source
        return places.get(id(value), value)

    for cell, operands, outputs in opened:
        note_call(tables.sources, cell, name, where, body, parameters, len(opened) > 1)
        avals = tuple((aval, tables.avals.number(aval)) for aval in cell.out_avals)
        inputs = tuple(map(place, operands))
        passed = tuple(type(value) is Argument or isinstance(cell, ReductionCell) for value in inputs)
        steps.append(Step(cell, inputs, passed, avals))
        for output, value in enumerate(outputs):
            places[id(value)] = Made(len(steps) - 1, output)
    return Leaf(tuple(steps), tuple(map(place, leaves)), out_tree)


def check_returned(fun: Callable[..., Any], result: Any, sample: str) -> None:
    """Raise for what a function returned that calls no other one and that is not an array or a number."""
    for position, leaf in enumerate(jax.tree.leaves(result)):
        if not is_array(leaf):
            path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(result)[0][position][0])
            raise OutputError(
                f"{describe_function(fun)} returned {described(leaf)} of type {type(leaf).__name__} "
                f"at result{path}, while {sample} was recorded. A decorated function returns arrays and "
                "numbers in any pytree; return static things from an undecorated function instead."
            )
