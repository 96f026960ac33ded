"""Splitting of a decorated function that reduces a list of any length.

If a cell took a list of children as operands, every number of children would be a type of its own. So the body is split
at the sums over the list. The operations of one term are one cell. The sum takes any number of terms. The operations
before and after the sum are cells, too. These cells serve lists of every length.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jitbatch.ir.cell import Cell, intern_cell
from jitbatch.record.fold import fold
from jitbatch.record.grouping import Item, group_items, needed_groups
from jitbatch.record.reductions import gather_sums
from jitbatch.record.values import Op, Value, within_body
from jitbatch.util import compat, passes
from jitbatch.util.array_leaves import is_array
from jitbatch.util.static import bits_key


class Element(NamedTuple):
    """An element of a list argument: the id of the list, and the position in it."""

    list_id: int
    position: int


def list_elements(
    fun: Callable[..., Any], positional: Sequence[Any], named: Sequence[Any], is_shared: Sequence[bool]
) -> list[Element | None]:
    """For each leaf of a call's arguments, its list element or None. Lists are lists, tuples of equal items, and
    `*args`. Lists in shared arguments, such as layers of weights, do not count."""
    list_ids = itertools.count()
    code = getattr(fun, "__code__", None)
    fixed = code.co_argcount if code is not None and code.co_flags & inspect.CO_VARARGS else len(positional)
    arguments = [*positional[:fixed], tuple(positional[fixed:]), *named]
    shared = [*is_shared[:fixed], False, *is_shared[len(positional) :]]
    labels: list[Element | None] = []
    for argument, is_shared_argument in zip(arguments, shared, strict=True):
        labels += [None] * len(jax.tree.leaves(argument)) if is_shared_argument else _labels(argument, list_ids)
    return labels


def _labels(node: Any, list_ids: Iterator[int]) -> list[Element | None]:
    children = compat.children(node)
    if children is None:
        return [None]
    if type(node) in (list, tuple) and children and _are_alike(children):
        list_id = next(list_ids)
        return [Element(list_id, i) for i, child in enumerate(children) for _ in jax.tree.leaves(child)]
    return [label for child in children for label in _labels(child, list_ids)]


def _are_alike(items: Sequence[Any]) -> bool:
    """Whether all items of a list have one structure, arrays of equal types, and equal other leaves."""
    described = []
    for item in items:
        leaves, tree = jax.tree.flatten(item)
        if not any(map(is_array, leaves)):
            return False
        described.append((tree, [compat.typeof(leaf) if is_array(leaf) else bits_key(leaf) for leaf in leaves]))
    return all(item == described[0] for item in described)


Cells = list[tuple[Cell, Sequence[Any], Sequence[Value]]]
"""Cells in the order of execution, each with its operands and its outputs."""


def open_body(
    body: Sequence[Op], results: Sequence[Any], elements: Mapping[int, Element | None], shared: set[int], name: str,
    where: str,
) -> Cells | None:  # fmt: skip
    """The body of a call as several cells, or None if it reduces no list.

    Args:
        body: the operations of the body.
        results: the leaves of its result.
        elements: the list element of each argument, by the `id` of the argument.
        shared: the `id`s of the shared arguments.
    """
    lists: dict[int, set[Element]] = {}
    for element in elements.values():
        if element is not None:
            lists.setdefault(element.list_id, set()).add(element)
    if not lists or not passes.runs("open"):
        return None
    given = {key: frozenset([e]) if e else frozenset() for key, e in elements.items()}
    needs = _dependencies(body, given)

    def covers_a_list(terms: Sequence[Any]) -> bool:
        """Whether each element of a list belongs to exactly one term."""
        for members in lists.values():
            needed = [here for term in terms if (here := needs.get(id(term), frozenset()) & members)]
            each_once = all(len(here) == 1 for here in needed) and frozenset().union(*needed) == members
            if each_once and len(needed) == len(members):
                return True
        return False

    ops, found = gather_sums(body, results, covers_a_list, elements), 0
    while found < (count := _count_cells(ops)):  # the terms of one reduction may depend on the result of another
        found, needs = count, _dependencies(ops, given)
        ops = gather_sums(ops, results, covers_a_list, elements)
    if not found:
        return None
    return _regroup(ops, results, elements, shared, name, where)


def _dependencies(body: Sequence[Op], arguments: Mapping[int, frozenset[Any]]) -> dict[int, frozenset[Any]]:
    """The list elements that each value depends on. Paths through a reduction of any number of elements do not
    count."""
    needs = dict(arguments)
    for op in body:
        if op.cell is None:
            needed = frozenset().union(*(needs.get(id(value), frozenset()) for value in op.inputs))
            needs.update((id(value), needed) for value in op.outputs)
    return needs


def _count_cells(ops: Sequence[Op]) -> int:
    return len([op for op in ops if op.cell is not None])


def _regroup(
    ops: Sequence[Op], results: Sequence[Any], arguments: Mapping[int, Any], shared: set[int], name: str, where: str
) -> Cells:
    """The operations of a body as cells. Sums among them are already found."""

    def resolve(value: Any) -> Any:
        return within_body(value, arguments)

    items = [_item(op, [id(resolve(value)) for value in op.inputs]) for op in ops]
    alone, together = _without_rows(items, set(arguments) - shared)
    groups = [*([item] for item in alone), *group_items(together)]
    needed, is_read = needed_groups(groups, [id(resolve(value)) for value in results])
    cells: Cells = []
    for group in needed:
        members = [item.content for item in group]
        if members[0].cell is not None:
            cells.append((members[0].cell, members[0].inputs, members[0].outputs))
            continue
        outputs = [value for op in members for value in op.outputs if id(value) in is_read]
        read = (resolve(value) for op in members for value in op.inputs)
        parameters = list({id(value): value for value in read if id(value) in arguments}.values())
        jaxpr, operands = fold(members, parameters, outputs, name, resolve=resolve, keep_dead_code=True)
        cells.append((intern_cell(jaxpr, name, where), operands, outputs))
    return cells


def _item(op: Op, reads: Sequence[int]) -> Item:
    site = None if op.cell is not None else op.site
    return Item(op, reads, [id(value) for value in op.outputs], bool(op.effects), site, turn=op.turn)


def _without_rows(items: Sequence[Item], rows: set[int]) -> tuple[list[Item], list[Item]]:
    """The items that depend only on constants and shared arguments, and the other items. The former are computed once
    in a batch, so they are separate groups."""
    alone: list[Item] = []
    others: list[Item] = []
    for item in items:
        if not item.has_effects and item.content.cell is None and rows.isdisjoint(item.reads):  # type: ignore[arg-type]
            alone.append(item)
        else:
            rows.update(item.makes)  # type: ignore[arg-type]
            others.append(item)
    return alone, others
