"""Differences between types: why calls of one function are not one type, on which line, and a remedy.

Two cells from the same place in the user's code may have different types. This module compares their operations, one
by one, and reports the first difference as the reason.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jitbatch.ir.cell import array_key, param_key
from jitbatch.ir.sources import Operand, Operation
from jitbatch.ir.tables import ROW, SharedArray, SharedLeaf
from jitbatch.record.shared_arguments import shared_names

if TYPE_CHECKING:
    from jitbatch.inspect.explain import Group

Cause = Literal["value", "parameters", "branch", "loop", "other"]


class Difference(NamedTuple):
    """The difference between two cells.

    Attributes:
        where: the file and line.
        what: a description, with a placeholder for the sides.
        sides: the two different values.
        remedy: a way to make the cells equal.
        cause: `"value"` if each further value in the data is a further type; `"parameters"` if they have different
            weights; `"branch"` and `"loop"` if Python runs different operations; or `"other"`.
    """

    where: str
    what: str
    sides: tuple[str, str]
    remedy: str
    cause: Cause = "other"


def families(groups: "Sequence[Group]") -> "dict[tuple[str, str], list[list[Group]]]":
    """Returns the functions (name and line) with several types, and these types in clusters.

    Only the types of one cluster are variants of each other. The groups of operations outside of decorated functions
    are variants only if they run the same operations of the same lines; else they are pieces of one computation.
    """
    found: dict[tuple[str, str], dict[Any, list[Group]]] = {}
    for group in groups:
        if not group.source.is_part and not group.cell.is_variadic:  # the cells of one call differ: they are its parts
            key = _line_by_line(group.source.operations) if group.source.is_bare else None
            found.setdefault((group.source.name, group.source.where), {}).setdefault(key, []).append(group)
    clusters = {family: list(some.values()) for family, some in found.items()}
    return {family: some for family, some in clusters.items() if sum(map(len, some)) > 1}


def _line_by_line(operations: Sequence[Operation]) -> Any:
    """Returns the operations and their lines; if values are stacked, only the lines: an operation may run for each."""
    if any(operation.name in ("stack", "concatenate") for operation in operations):
        return frozenset(operation.where for operation in operations)
    return tuple((operation.name, operation.where) for operation in operations)


def compared(members: "Sequence[Group]", static: Any) -> "Iterator[tuple[Group, Group, Difference]]":
    """Yields pairs of types of a cluster and their difference. Each type but the first is second in one pair."""
    members = sorted(members, key=lambda group: -(group.calls or 0))
    first = members[0]
    alike: dict[tuple[str, ...], Group] = {_operation_names(first): first}
    for other in members[1:]:
        # Compare types with the same operations first: their difference says more than the fact that operations differ.
        nearest = alike.setdefault(_operation_names(other), other)
        base = first if nearest is other else nearest
        yield base, other, find_difference(base, other, static)


def descriptions(groups: "Sequence[Group]", static: Any) -> dict[tuple[int, ...], str]:
    """Returns, by the kinds of a type, its difference from the other types of its function."""
    told: dict[tuple[int, ...], list[str]] = {}
    for clusters in families([group for group in groups if group.calls != 0]).values():
        for cluster in clusters:
            if len(clusters) > 1:
                for group in cluster:
                    told.setdefault(group.kinds, []).append(f"runs {_run(group)}")
            for first, second, found in compared(cluster, static):
                for group, side in ((first, found.sides[0]), (second, found.sides[1])):
                    of_group = told.setdefault(group.kinds, [])
                    if (text := found.what.format(side)) not in of_group:
                        of_group.append(text)
    return {kinds: "; ".join(texts[:2]) for kinds, texts in told.items()}


def _run(group: "Group") -> str:
    names = [
        called(operation.name)
        + ("" if operation.where == group.source.where else f" of line {operation.where.rpartition(':')[2]}")
        for operation in group.source.operations
    ]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _operation_names(group: "Group") -> tuple[str, ...]:
    return tuple(operation.name for operation in group.source.operations)


_WORDS = {
    "add": "`+`", "sub": "`-`", "mul": "`*`", "div": "`/`", "neg": "`-`", "add_any": "`+`", "integer_pow": "a power",
    "dot_general": "a matrix product", "broadcast_in_dim": "a broadcast", "convert_element_type": "a conversion",
    "reduce_sum": "a sum", "reduce_max": "a maximum", "reduce_min": "a minimum", "select_n": "`jnp.where`",
    "gather": "an index", "dynamic_slice": "a slice", "slice": "a slice", "squeeze": "an index",
}  # fmt: skip


def called(name: str) -> str:
    """Returns what a user calls an operation: `*`, not `mul`."""
    return _WORDS.get(name, f"`{name}`")


def find_difference(first: "Group", second: "Group", static: Any) -> Difference:
    """Returns the first difference between two cells of one function."""
    where = first.source.where
    parameters = _of_parameters(first, second, static)
    if parameters is not None:
        return parameters
    stacked = _of_stacks(first.source.operations, second.source.operations)
    if stacked is not None:
        return stacked
    for mine, theirs in zip(first.source.operations, second.source.operations, strict=False):
        found = _of_operations(mine, theirs)
        if found is not None:
            return found
    lengths = len(first.source.operations), len(second.source.operations)
    if lengths[0] != lengths[1]:
        return Difference(
            where, "it runs {} operations", (str(lengths[0]), str(lengths[1])),
            "A loop or a branch of Python inside it differs from call to call: decorate what the loop repeats, so that "
            "each turn is a call of its own", "loop",
        )  # fmt: skip
    for mine, theirs in zip(first.cell.cell.in_avals, second.cell.cell.in_avals, strict=False):
        found = _of_operands(where, "an argument", Operand(mine), Operand(theirs))
        if found is not None:
            return found
    return _of_bindings(first, second, static)


def _of_parameters(first: "Group", second: "Group", static: Any) -> Difference | None:
    """Returns the difference if each of two cells uses parameters that the other does not, or None."""
    mine, theirs = _parameters(first, static), _parameters(second, static)
    if not mine - theirs or not theirs - mine:
        return None
    return _different_parameters(first.source.where, min(mine - theirs), min(theirs - mine), static)


def _parameters(group: "Group", static: Any) -> set[int]:
    entries = [static.tables.shared[shared_id] for shared_id in group.cell.shared_ids]
    return {entry.index for entry in entries if isinstance(entry, SharedLeaf)}


def _different_parameters(where: str, mine: int, theirs: int, static: Any) -> Difference:
    names = shared_names(static.shared_key, static.call)
    return Difference(
        where, "it is used with different parameters, {}", (names[mine], names[theirs]),
        "Stack the weights, and select the row of a call with an index that is an argument", "parameters",
    )  # fmt: skip


def _of_stacks(first: Sequence[Operation], second: Sequence[Operation]) -> Difference | None:
    """Returns the first difference in the number of values of a stack, or None. Stacks of a softmax are named so."""
    stacks = [[operation for operation in some if operation.name == "stack"] for some in (first, second)]
    for mine, theirs in zip(*stacks, strict=False):
        if len(mine.operands) != len(theirs.operands):
            softmax = next(
                (operation for operation in first if operation.name in ("exp", "softmax", "logsumexp")), None
            )
            return Difference(
                mine.where if softmax is None else softmax.where,
                f"{'a stack' if softmax is None else 'a softmax of a stack'} has {{}} values",
                (str(len(mine.operands)), str(len(theirs.operands))), f"The number is part of its shape. {_SEGMENT}",
                "value",
            )  # fmt: skip
    return None


_SEGMENT = (
    "`jitbatch.segment` (softmax, logsumexp, attend, weighted_sum, mean, max, sum) takes the list itself, and batches "
    "lists of every length together"
)


def _of_operations(first: Operation, second: Operation) -> Difference | None:
    if first.name == second.name and len(first.operands) != len(second.operands):
        return Difference(
            first.where, f"{called(first.name)} gets {{}} values",
            (str(len(first.operands)), str(len(second.operands))),
            "Sums, means, maxima and minima of a list are one type for every length, and so are softmax and attention "
            "by `jitbatch.segment`; what else is done with a list is a type for each: decorate what is done with one "
            "element", "value",
        )  # fmt: skip
    if first.name != second.name:
        return Difference(
            first.where, "it runs {}", (called(first.name), called(second.name)),
            "Python's control flow takes different ways (structure, shapes or Static values), and only calls that run "
            "the same operations are batched: compute both and select with jnp.where, if they are cheap", "branch",
        )  # fmt: skip
    for mine, theirs in zip(first.operands, second.operands, strict=True):
        found = _of_operands(first.where, called(first.name), mine, theirs)
        if found is not None:
            return found
    for key in first.params.keys() & second.params.keys():
        if param_key(first.params[key]) != param_key(second.params[key]):
            return _of_options(first, key, (_short(first.params[key]), _short(second.params[key])))
    return None


def _of_options(operation: Operation, option: str, sides: tuple[str, str]) -> Difference:
    if option == "index":
        return Difference(
            operation.where, "an index into a computed array is {}", sides,
            "An index that is a Python number is part of what is computed: use lax.dynamic_index_in_dim, or pass it as "
            "an argument", "value",
        )  # fmt: skip
    if operation.name == "integer_pow":
        return Difference(
            operation.where, "the exponent of a power is {}", sides,
            "A Python number that a function gets is part of what is computed. Pass it as an argument of a decorated "
            "function, which makes it data: `def power(params, x, n): return jnp.power(x, n)`", "value",
        )  # fmt: skip
    if option in ("jaxpr", "call_jaxpr"):  # of a jitted function: its text says nothing to a user
        return Difference(
            operation.where, f"{called(operation.name)} gets different options", ("", ""),
            "Options of an operation are part of what is computed: use one value where you can",
        )  # fmt: skip
    return Difference(
        operation.where, f"{called(operation.name)} has {option}={{}}", sides,
        "Options of an operation are part of what is computed: use one value where you can",
    )  # fmt: skip


def _of_operands(where: str, what: str, first: Operand, second: Operand) -> Difference | None:
    a, b = first.aval, second.aval
    if a.dtype != b.dtype:
        return Difference(
            where, f"called with several dtypes, {what} has {{}}", (str(a.dtype), str(b.dtype)),
            "Convert to one dtype before the call, with jnp.asarray(x, dtype)",
        )  # fmt: skip
    if a.shape != b.shape:
        return Difference(
            where, f"{what} has shapes {{}}", (str(list(a.shape)), str(list(b.shape))),
            "Index rows one by one, so that each is a call of its own, or pad to one shape; softmax, attention and "
            "means over rows of any number are in `jitbatch.segment`", "value",
        )  # fmt: skip
    if a.weak_type != b.weak_type:
        sides = ("a Python number" if a.weak_type else "an array"), ("a Python number" if b.weak_type else "an array")
        return Difference(
            where, f"called with {{}}, which promote differently in {what}", sides,
            "Make it an array in all calls, with jnp.asarray(x, dtype)",
        )  # fmt: skip
    if first.constant is not None and second.constant is not None and not _equal(first.constant, second.constant):
        if not a.shape:
            return Difference(
                where, f"a Python number in {what} is {{}}", (_short(first.constant), _short(second.constant)),
                "A number that is given to a function is part of what is computed, unlike one that an operator "
                "combines with a value (x * n): use an operator, or pass it as an argument of a decorated function",
                "value",
            )  # fmt: skip
        return Difference(
            where, f"a constant array {a.str_short()} in {what} differs from call to call", ("", ""),
            "An array that is closed over is part of what is computed: pass it as an argument", "value",
        )  # fmt: skip
    return None


def _of_bindings(first: "Group", second: "Group", static: Any) -> Difference:
    """Returns the difference between two types of one cell: the shared values that they are bound to."""
    where, tables = first.source.where, static.tables
    for mine, theirs in zip(first.cell.binding, second.cell.binding, strict=False):
        if mine != theirs and ROW not in (mine, theirs):
            a, b = tables.shared[mine], tables.shared[theirs]
            if isinstance(a, SharedLeaf) and isinstance(b, SharedLeaf):
                return _different_parameters(where, a.index, b.index, static)
            if isinstance(a, SharedArray) and isinstance(b, SharedArray):
                return Difference(
                    _line_of_constant(first, tables.classes[tables.shared_class[mine]].shape) or where,
                    "a constant array that it closes over differs from call to call", ("", ""),
                    "An array that is closed over is part of what is computed: pass it as an argument", "value",
                )  # fmt: skip
            return Difference(
                where, "it is used with different values that all samples share", ("", ""),
                "Pass them as mapped arguments to batch its calls together",
            )  # fmt: skip
    return Difference(
        where, "its calls compute different things", ("", ""),
        "Only calls that run the same operations on equal shapes and dtypes are batched",
    )  # fmt: skip


def _line_of_constant(group: "Group", shape: tuple[int, ...]) -> str | None:
    for operation in group.source.operations:
        if any(operand.constant is not None and operand.aval.shape == shape for operand in operation.operands):
            return operation.where
    return None


def _equal(first: Any, second: Any) -> bool:
    return array_key(np.asarray(first)) == array_key(np.asarray(second))


def _short(value: Any) -> str:
    text = repr(np.asarray(value)[()].item()) if np.ndim(value) == 0 and hasattr(value, "dtype") else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
