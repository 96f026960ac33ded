"""Opening a decorated function that reduces a list of any length.

A cell that takes a list of children would be a type of its own for every number of children. So its body is taken apart
around the sums over that list: what makes one term is a cell, the sum takes any number of terms, and what comes before
and after are cells as well. The same cells serve lists of every length.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jitbatch.ir.cell import Cell, intern_cell
from jitbatch.record.fold import fold
from jitbatch.record.grouping import group_operations
from jitbatch.record.reductions import gather_sums
from jitbatch.record.values import Op, Value, within_body
from jitbatch.util import compat, passes
from jitbatch.util.array_leaves import is_array
from jitbatch.util.static import bits_key


class Element(NamedTuple):
    """An element of a list among the arguments of a call."""

    of: int
    position: int


def list_elements(
    fun: Callable[..., Any], positional: Sequence[Any], named: Sequence[Any], is_shared: Sequence[bool]
) -> list[Element | None]:
    """For each leaf of a call's arguments the element that it belongs to of a list, a tuple of equal items, or
    `*args`. Lists among shared arguments, such as layers of weights, do not count."""
    numbers = itertools.count()
    code = getattr(fun, "__code__", None)
    fixed = code.co_argcount if code is not None and code.co_flags & inspect.CO_VARARGS else len(positional)
    given = [*positional[:fixed], tuple(positional[fixed:]), *named]
    shared = [*is_shared[:fixed], False, *is_shared[len(positional) :]]
    labels: list[Element | None] = []
    for argument, is_one in zip(given, shared, strict=True):
        labels += [None] * len(jax.tree.leaves(argument)) if is_one else _labels(argument, numbers)
    return labels


def _labels(node: Any, numbers: Iterator[int]) -> list[Element | None]:
    children = compat.children(node)
    if children is None:
        return [None]
    if type(node) in (list, tuple) and children and _are_alike(children):
        number = next(numbers)
        return [Element(number, i) for i, child in enumerate(children) for _ in jax.tree.leaves(child)]
    return [label for child in children for label in _labels(child, numbers)]


def _are_alike(items: Sequence[Any]) -> bool:
    """Whether items of a list have one structure and hold arrays of equal types; what is no array is equal itself."""
    described = []
    for item in items:
        leaves, tree = jax.tree.flatten(item)
        if not any(map(is_array, leaves)):
            return False
        described.append((tree, [compat.typeof(leaf) if is_array(leaf) else bits_key(leaf) for leaf in leaves]))
    return all(one == described[0] for one in described)


Opened = list[tuple[Cell, Sequence[Any], Sequence[Value]]]
"""Cells in the order of execution, each with its operands and the values that it makes."""


def open_body(
    body: Sequence[Op], results: Sequence[Any], elements: Mapping[int, Element | None], shared: set[int], name: str,
    where: str,
) -> Opened | None:  # fmt: skip
    """The body of a call as several cells, or None when it reduces no list.

    Args:
        body: its operations.
        results: the leaves of its result.
        elements: for the `id` of each argument, the element of a list that it belongs to.
        shared: the `id`s of arguments that are shared.
    """
    lists: dict[int, set[Element]] = {}
    for element in elements.values():
        if element is not None:
            lists.setdefault(element.of, set()).add(element)
    if not lists or not passes.runs("open"):
        return None
    given = {key: frozenset([e]) if e else frozenset() for key, e in elements.items()}
    needs = _dependencies(body, given)

    def covers_a_list(terms: Sequence[Any]) -> bool:
        """Whether each element of a list is needed by one term, and no term needs two."""
        for members in lists.values():
            needed = [here for term in terms if (here := needs.get(id(term), frozenset()) & members)]
            each_once = all(len(here) == 1 for here in needed) and frozenset().union(*needed) == members
            if each_once and len(needed) == len(members):
                return True
        return False

    ops, found = gather_sums(body, results, covers_a_list, elements), 0
    while found < (count := _count_cells(ops)):  # the terms of a reduction may need the result of another
        found, needs = count, _dependencies(ops, given)
        ops = gather_sums(ops, results, covers_a_list, elements)
    if not found:
        return None
    return _regroup(ops, results, elements, shared, name, where)


def _dependencies(body: Sequence[Op], given: Mapping[int, frozenset[Any]]) -> dict[int, frozenset[Any]]:
    """Which elements each value depends on, other than by way of a reduction of any number of them."""
    needs = dict(given)
    for op in body:
        if op.cell is None:
            needed = frozenset().union(*(needs.get(id(value), frozenset()) for value in op.inputs))
            needs.update((id(value), needed) for value in op.outputs)
    return needs


def _count_cells(ops: Sequence[Op]) -> int:
    return len([op for op in ops if op.cell is not None])


def _regroup(
    ops: Sequence[Op], results: Sequence[Any], arguments: Mapping[int, Any], shared: set[int], name: str, where: str
) -> Opened:
    def resolve(value: Any) -> Any:
        return within_body(value, arguments)

    # What depends on constants and shared arguments alone stays apart: it is computed once a batch.
    rows = set(arguments) - shared
    made_by: dict[int, int] = {}
    apart: list[Op] = []
    kept: list[Op] = []
    reads: list[list[int]] = []
    for op in ops:
        inputs = [id(resolve(value)) for value in op.inputs]
        if not op.effects and op.cell is None and not rows.intersection(inputs):
            apart.append(op)
            continue
        reads.append([made_by[key] for key in inputs if key in made_by])
        made_by.update((id(value), len(kept)) for value in op.outputs)
        rows.update(id(value) for value in op.outputs)
        kept.append(op)
    sites = [None if op.cell is not None else op.site for op in kept]
    numbers = group_operations(sites, [0] * len(kept), reads, [op.turn for op in kept])
    groups = [[op] for op in apart] + [[] for _ in range(max(numbers, default=-1) + 1)]
    for op, number in zip(kept, numbers, strict=True):
        groups[len(apart) + number].append(op)

    group_of = {id(value): number for number, group in enumerate(groups) for op in group for value in op.outputs}
    read_outside = {id(resolve(value)) for value in results}
    for number, group in enumerate(groups):
        keys = (id(resolve(value)) for op in group for value in op.inputs)
        read_outside.update(key for key in keys if group_of.get(key, number) != number)
    opened: Opened = []
    for group in groups:
        outputs = [value for op in group for value in op.outputs if id(value) in read_outside]
        if group[0].cell is not None:
            opened.append((group[0].cell, group[0].inputs, group[0].outputs))
        elif outputs or any(op.effects for op in group):
            read = (resolve(value) for op in group for value in op.inputs)
            parameters = list({id(value): value for value in read if id(value) in arguments}.values())
            jaxpr, operands = fold(group, parameters, outputs, name, resolve=resolve, keep_dead_code=True)
            opened.append((intern_cell(jaxpr, name, where), operands, outputs))
    return opened
