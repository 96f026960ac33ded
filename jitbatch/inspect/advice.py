"""Advice: the reasons why calls of one function have several types, and remedies.

Two cells from the same place in the user's code may have different types. This module compares their operations, one
by one, and reports the first difference as the reason.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitbatch.execute.memory import Memory
from jitbatch.inspect.report import Advice, CellReport
from jitbatch.inspect.verdict import is_narrow
from jitbatch.ir.cell import array_key, param_key
from jitbatch.ir.sources import Operand, Operation
from jitbatch.ir.tables import ROW, SharedArray, SharedLeaf
from jitbatch.record.shared_arguments import shared_names
from jitbatch.util import compat
from jitbatch.util.malloc import remedy

if TYPE_CHECKING:
    from jitbatch.inspect.explain import Group

WASTE = 0.5
"""The fraction of padding above which a plan gets advice."""


class Difference(NamedTuple):
    """The difference between two cells.

    Attributes:
        where: the file and line.
        what: a description, with a placeholder for the sides.
        sides: the two different values.
        remedy: a way to make the cells equal.
    """

    where: str
    what: str
    sides: tuple[str, str]
    remedy: str


def advise(
    groups: "Sequence[Group]", cells: Sequence[CellReport], static: Any, samples: int, memory: Memory
) -> Iterator[Advice]:
    """Yields the advice for a plan: effects, types of one function, random keys, narrow steps, padding, memory."""
    if static.reason == "cells have effects":
        yield Advice(
            "", "some cells have effects (jax.debug.print, a callback), so the plan runs step by step by the dispatch "
            "executor: take them out of what is trained",
        )  # fmt: skip
    present = [group for group in groups if group.calls != 0]
    told: set[tuple[str, str]] = set()
    for family, members in _families(present).items():
        told.add(family)
        yield from _of_family(members, static)
    if static.owner._options.dedupe:
        yield from (advice for group in present for advice in _of_keys(group, cells))
    for cell in cells:
        if (cell.name, cell.where) not in told:
            yield from _of_width(cell, samples)
    rows = sum(part.distinct for cell in cells for part in cell.parts)
    padded = sum(part.distinct / (1 - part.padding) for cell in cells for part in cell.parts if part.padding < 1)
    if padded > 256 and rows < (1 - WASTE) * padded:
        yield Advice(
            "", f"{100 * (1 - rows / padded):.0f}% of the computed rows are padding: the plan has room for more "
            "(`like`), or steps are narrower than the smallest width that is compiled. Larger minibatches fill them",
        )  # fmt: skip
    if static.program.sizes is not None and (what := remedy(memory.training)) is not None:
        yield Advice(
            "", f"a training step needs {memory.training / 1e6:.0f} MB, which the C library gives back to the system "
            f"after every step: {what}",
        )  # fmt: skip


def _families(groups: "Sequence[Group]") -> "dict[tuple[str, str], list[Group]]":
    """Returns the functions (name and line) with several types, and these types."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if not group.source.is_part:  # the cells of one call differ because they are its parts
            families.setdefault((group.source.name, group.source.where), []).append(group)
    families = {family: _alike(some) for family, some in families.items()}
    return {family: some for family, some in families.items() if len(some) > 1 and not some[0].cell.is_variadic}


def _alike(groups: "list[Group]") -> "list[Group]":
    """Returns the groups without pieces: bare operations that share no operation with the others of their line."""
    names = [set(_operation_names(group)) for group in groups]
    return [
        group
        for at, group in enumerate(groups)
        if not group.source.is_bare or any(names[at] & other for i, other in enumerate(names) if i != at)
    ]


def differences(groups: "Sequence[Group]", static: Any) -> dict[tuple[int, ...], str]:
    """Returns, by the kinds of a type, its difference from the other types of its function."""
    told: dict[tuple[int, ...], list[str]] = {}
    for members in _families([group for group in groups if group.calls != 0]).values():
        for first, second, (_, what, sides, _) in _compared(members, static):
            for group, side in ((first, sides[0]), (second, sides[1])):
                of_group = told.setdefault(group.kinds, [])
                if (text := what.format(side)) not in of_group:
                    of_group.append(text)
    return {kinds: "; ".join(texts[:2]) for kinds, texts in told.items()}


def _compared(members: "Sequence[Group]", static: Any) -> "Iterator[tuple[Group, Group, Difference]]":
    """Yields pairs of types of one function and their difference. Each type but the first is second in one pair."""
    members = sorted(members, key=lambda group: -(group.calls or 0))
    first = members[0]
    alike: dict[tuple[str, ...], Group] = {_operation_names(first): first}
    for other in members[1:]:
        # Compare types with the same operations first: their difference says more than the fact that operations differ.
        nearest = alike.setdefault(_operation_names(other), other)
        base = first if nearest is other else nearest
        yield base, other, find_difference(base, other, static)


def _of_family(members: "Sequence[Group]", static: Any) -> Iterator[Advice]:
    """Yields each reason why a function has several types once, with all values that differ."""
    name = members[0].source.name
    met: dict[tuple[str, str, str], list[str]] = {}
    for _, _, found in _compared(members, static):
        met.setdefault((found.where, found.what, found.remedy), [found.sides[0]]).append(found.sides[1])
    for (where, what, advised), sides in met.items():
        text = what.format(_listed(list(dict.fromkeys(sides))))
        yield Advice(where, f"`{name}` has {len(members)} types instead of one: {text}. {advised}")


def _operation_names(group: "Group") -> tuple[str, ...]:
    return tuple(operation.name for operation in group.source.operations)


def _listed(sides: Sequence[str]) -> str:
    if len(sides) > 4:
        return ", ".join(sides[:4]) + f", ... ({len(sides)} in all)"
    return " and ".join([*([", ".join(sides[:-1])] if sides[:-1] else []), sides[-1]])


def find_difference(first: "Group", second: "Group", static: Any) -> Difference:
    """Returns the first difference between two cells of one function."""
    where = first.source.where
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
            "each turn is a call of its own",
        )  # fmt: skip
    for mine, theirs in zip(first.cell.cell.in_avals, second.cell.cell.in_avals, strict=False):
        found = _of_operands(where, "an argument", Operand(mine), Operand(theirs))
        if found is not None:
            return found
    return _of_bindings(first, second, static)


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
            )  # fmt: skip
    return None


_SEGMENT = (
    "`jitbatch.segment` (softmax, logsumexp, attend, weighted_sum, mean, max, sum) takes the list itself, and batches "
    "lists of every length together"
)


def _of_operations(first: Operation, second: Operation) -> Difference | None:
    if first.name == second.name and len(first.operands) != len(second.operands):
        return Difference(
            first.where, f"`{first.name}` gets {{}} values", (str(len(first.operands)), str(len(second.operands))),
            "Sums, means, maxima and minima of a list are one type for every length, and so are softmax and attention "
            "by `jitbatch.segment`; what else is done with a list is a type for each: decorate what is done with one "
            "element",
        )  # fmt: skip
    if first.name != second.name:
        return Difference(
            first.where, "it runs {}", (f"`{first.name}`", f"`{second.name}`"),
            "Python's control flow takes different ways (structure, shapes or Static values), and only calls that run "
            "the same operations are batched: give each way a decorated function of its own, or use jnp.where",
        )  # fmt: skip
    for mine, theirs in zip(first.operands, second.operands, strict=True):
        found = _of_operands(first.where, f"`{first.name}`", mine, theirs)
        if found is not None:
            return found
    for key in first.params.keys() & second.params.keys():
        if param_key(first.params[key]) != param_key(second.params[key]):
            sides = _short(first.params[key]), _short(second.params[key])
            if key == "index":
                return Difference(
                    first.where, "an index into a computed array is {}", sides,
                    "An index that is a Python number is part of what is computed: use lax.dynamic_index_in_dim, or "
                    "pass it as an argument",
                )  # fmt: skip
            return Difference(
                first.where, f"`{first.name}` has {key}={{}}", sides,
                "Options of an operation are part of what is computed: use the same ones, or give each a decorated "
                "function of its own",
            )  # fmt: skip
    return None


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
            "means over rows of any number are in `jitbatch.segment`",
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
            )  # fmt: skip
        return Difference(
            where, f"a constant array {a.str_short()} in {what} differs from call to call", ("", ""),
            "An array that is closed over is part of what is computed: pass it as an argument",
        )  # fmt: skip
    return None


def _of_bindings(first: "Group", second: "Group", static: Any) -> Difference:
    """Returns the difference between two types of one cell: the shared values that they are bound to."""
    where, tables = first.source.where, static.tables
    for mine, theirs in zip(first.cell.binding, second.cell.binding, strict=False):
        if mine != theirs and ROW not in (mine, theirs):
            entries = tables.shared[mine], tables.shared[theirs]
            if all(isinstance(entry, SharedLeaf) for entry in entries):
                names = shared_names(static.shared_key, static.call)
                sides = names[entries[0].index], names[entries[1].index]
                return Difference(
                    where, "it is used with different parameters, {}", sides,
                    "Each set of weights is a type of its own, which is right for layers. To batch them together, "
                    "stack the weights and index them with an argument",
                )  # fmt: skip
            if all(isinstance(entry, SharedArray) for entry in entries):
                return Difference(
                    _line_of_constant(first, tables.classes[tables.shared_class[mine]].shape) or where,
                    "a constant array that it closes over differs from call to call", ("", ""),
                    "An array that is closed over is part of what is computed: pass it as an argument",
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


def _of_keys(group: "Group", cells: Sequence[CellReport]) -> Iterator[Advice]:
    """Yields advice for a cell whose calls all differ because each has its own random key."""
    rows = zip(group.cell.cell.in_avals, group.cell.binding, strict=True)
    if not any(bound == ROW and compat.is_prng_key(aval.dtype) for aval, bound in rows):
        return
    cell = next((c for c in cells if (c.name, c.where) == (group.source.name, group.source.where)), None)
    if cell is not None and group.calls and group.calls > 1 and cell.distinct == group.calls:
        yield Advice(
            group.source.where,
            f"`{cell.name}` gets a random key of its own in each of {group.calls} calls, so that no two are equal and "
            "dedupe merges none. Right for dropout; where the rest of the cell does not need the key, move it to a "
            "cell without one",
        )


def _of_width(cell: CellReport, samples: int) -> Iterator[Advice]:
    main = cell.main
    if not is_narrow(main, samples):
        return
    if main.steps > main.least_steps:
        why = (
            f"{main.least_steps} steps would do if its calls waited for no other type: another policy may find fewer "
            "(the line `policy` below counts), and a larger minibatch makes every step wider"
        )
    else:
        why = (
            f"its calls wait for each other in a chain of {main.least_steps}, which no schedule can shorten. A larger "
            "minibatch makes every step wider"
        )
    yield Advice(
        cell.where,
        f"`{cell.name}` runs {main.distinct} calls in {main.steps} steps, {main.mean_width:.1f} at a time: {why}",
    )


def _equal(first: Any, second: Any) -> bool:
    return array_key(np.asarray(first)) == array_key(np.asarray(second))


def _short(value: Any) -> str:
    text = repr(np.asarray(value)[()].item()) if np.ndim(value) == 0 and hasattr(value, "dtype") else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
