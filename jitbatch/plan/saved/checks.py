"""Checks of a loaded plan: its sizes are consistent, and its tables have these sizes.

A file may be forged, with a valid checksum. Whatever it contains, the worst result of running the plan is an error: no
size is larger than the tables in the file, and no table refers to a missing row. The format of each executor checks its
own programs (`plan/saved/fused`, `plan/saved/dispatch`).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.execute.program import ArenaShape
from jitbatch.ir.tables import Kind, Tables
from jitbatch.plan.capacity import class_named
from jitbatch.plan.saved.content import Content
from jitbatch.plan.saved.values import damaged
from jitbatch.plan.static import Summary


def check(holds: Any, law: str) -> None:
    """Raises `PlanError` if an invariant does not hold."""
    if not holds:
        damaged(law)


def check_sizes(content: Content) -> None:
    """Raises `PlanError` for sizes of arenas and results that no plan has."""
    arenas = content.arenas
    classes = [class_named(arena.value_class) for arena in arenas]
    check(len(set(classes)) == len(classes), "an arena for each class of values")
    check(all(arena.inputs >= 0 and arena.capacity >= 1 for arena in arenas), "the size of an arena")
    arena_ids = itertools.chain(*content.out_arenas)
    check(all(0 <= arena_id < len(arenas) for arena_id in arena_ids), "an arena of results that is not there")
    check(len(content.out_arenas) == len(content.out_trees) >= 1, "a tree and arenas for each result")
    check(content.out == "list" or len(content.out_trees) == 1, "one tree of results")


class TableChecks:
    """Checks the shapes and value ranges of arrays.

    Args:
        shards: the leading axes of all arrays: `()`, or the number of shards.
    """

    def __init__(self, shards: tuple[int, ...]):
        self.shards = shards

    def check(self, array: Any, shape: Sequence[int | None], end: Any, what: str, begin: int = 0) -> None:
        """Raises `PlanError` unless an array is int32, has this shape, and has values in `[begin, end)`.

        Args:
            array: the array.
            shape: the shape without shards; None is any size.
            end, begin: the bounds of the values.
            what: the name of the table, for the error message.
        """
        is_array = isinstance(array, np.ndarray) and array.dtype == np.int32
        check(is_array and array.ndim == len(self.shards) + len(shape), f"{what}: a table of another kind")
        wanted = (*self.shards, *shape)
        check(all(n in (None, size) for n, size in zip(wanted, array.shape, strict=True)), f"{what}: the size")
        check(np.all((array >= begin) & (array < end)), f"{what}: a row that is not there")

    def check_missing(self, table: Any, is_there: bool, what: str) -> bool:
        check((table is not None) == is_there, f"{what}: a table")
        return is_there


class PlanArrays(NamedTuple):
    """The arrays of a plan without its tables; see `Plan`."""

    inputs: tuple[Any, ...]
    out_rows: tuple[Any, ...]
    ragged: Any
    counts: Any


def check_arrays(plan: PlanArrays, content: Content, outlines: Sequence[int]) -> TableChecks:
    """Raises `PlanError` if inputs and results do not fit the static part of their plan.

    Args:
        plan: the arrays.
        content: the static part.
        outlines: the number of items in each nesting of ragged results.

    Returns:
        A `TableChecks` for the tables of the plan.
    """
    counts = plan.counts
    check(isinstance(counts, np.ndarray) and counts.ndim in (1, 2), "the numbers of a plan")
    tables = TableChecks(counts.shape[:-1])
    tables.check(counts, (len(Summary._fields),), 2**31, "the numbers of a plan")
    check(len(plan.inputs) == len(content.arenas), "input rows for each arena")
    for arena, rows in zip(content.arenas, plan.inputs, strict=True):
        value_class = class_named(arena.value_class)
        if tables.check_missing(rows, arena.inputs > 0, "input rows"):
            shape = (*tables.shards, arena.inputs, *value_class.shape)
            check((rows.shape, rows.dtype) == (shape, value_class.dtype), "input rows of another shape or dtype")
    _check_results(plan, content, outlines, tables)
    return tables


def _check_results(plan: PlanArrays, content: Content, outlines: Sequence[int], tables: TableChecks) -> None:
    capacity = [arena.capacity for arena in content.arenas]
    tables.check_missing(plan.ragged, content.out == "ragged", "ragged results")
    if content.out == "list":
        check(len(plan.out_rows) == len(content.out_arenas), "rows of each result")
        for arena_ids, rows in zip(content.out_arenas, plan.out_rows, strict=True):
            tables.check(
                rows, (len(arena_ids),), np.array([capacity[arena_id] for arena_id in arena_ids], np.int64), "results"
            )
        return
    check(len(plan.out_rows) == len(content.out_arenas[0]), "rows of each result")
    size = plan.out_rows[0].shape[-1] if plan.out_rows else 0
    if plan.ragged is not None:
        ragged = plan.ragged
        size = ragged.mask.shape[-1]
        check((ragged.mask.shape, ragged.mask.dtype) == ((*tables.shards, size), np.bool_), "the mask of items")
        samples = ragged.outline.shape[-1]
        tables.check(ragged.outline, (samples,), len(outlines), "the nesting of items")
        tables.check(ragged.sample, (size,), samples, "the sample of an item")
        tables.check(ragged.position, (size,), size + 1, "the position of an item")
        items = np.array(outlines, np.int64)[ragged.outline].sum(axis=-1)
        check(np.all(ragged.mask.sum(axis=-1) == items), "how many items there are")
    for arena_id, rows in zip(content.out_arenas[0], plan.out_rows, strict=True):
        tables.check(rows, (size,), capacity[arena_id], "results")


def shared_fit(arenas: Sequence[ArenaShape], tables: Tables) -> bool:
    """Whether the shared values in arenas have the value classes of these arenas."""
    return all(tables.shared_class[shared_id] == arena.value_class for arena in arenas for shared_id in arena.shared)


def classes_read(kind: Kind, tables: Tables) -> list[int]:
    """Returns the value classes of a kind's row operands."""
    return [tables.class_of(aval) for aval in kind.row_avals]


def classes_written(kind: Kind, tables: Tables) -> list[int]:
    return [tables.class_of(aval) for aval in kind.cell.out_avals]
