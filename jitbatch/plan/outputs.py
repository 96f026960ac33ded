"""The results of a batch: their trees, the classes of their leaves, and the rows that hold them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.execute.sizes import Sizes
from jitbatch.ir.items import common_item
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.plan.ragged import Ragged, ragged_outputs
from jitbatch.util.errors import OutputError
from jitbatch.util.headroom import headroom
from jitbatch.util.key_order import sorted_tree
from jitbatch.util.rounding import round_up


def outputs_of(
    graphs: Sequence[Any], tables: Tables, out: str, least: Sizes
) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """Returns the trees of the results, and the value classes of their leaves.

    For `out="stack"` there is one tree for all samples, for `out="list"` one for each sample, for `out="ragged"` the
    tree of an item, and for `out="rows"` none: the classes are those of all leaves. Dicts in a list of results keep the
    order of their keys. Stacked results have sorted keys, as `jax.vmap` returns them.

    Args:
        graphs: for each sample its `Graph` or `SampleProgram`; only `out_tree`, `out_classes` and `items` are read.
        tables: the tables of the function.
        out: the form of the outputs; see `jitbatch`. `"rows"` is for callers that hand out the results themselves: the
            rows of all leaves, for each value class.
        least: the least sizes: the form of an item, and the classes of outputs, if an earlier plan has them.
    """
    if out == "list":
        return tuple(g.out_tree for g in graphs), [g.out_classes for g in graphs]
    if out == "rows":
        return (), [tuple(sorted({*least.outputs, *(c for graph in graphs for c in graph.out_classes)}))]
    if out == "ragged":
        item = common_item([graph.items for graph in graphs], tables.classes) or least.item
        if item is None:
            raise OutputError(
                "no sample of the batch has an item, and so nothing tells what an item looks like. Leave such batches "
                "out, or plan them `like` a plan with items"
            )
        return (item[0],), [item[1]]
    first = graphs[0]
    if all(graph.out_tree is first.out_tree and graph.out_classes == first.out_classes for graph in graphs):
        return (sorted_tree(first.out_tree),), [first.out_classes]
    trees, classes = [sorted_tree(graph.out_tree) for graph in graphs], [graph.out_classes for graph in graphs]
    if trees.count(trees[0]) < len(trees) or classes.count(classes[0]) < len(classes):
        differs = [result != (trees[0], classes[0]) for result in zip(trees, classes, strict=True)]
        index = differs.index(True)
        raise OutputError(
            f"sample {index} has the result {_result_of(graphs[index], tables)}, but sample 0 has "
            f"{_result_of(graphs[0], tables)}: they cannot be stacked. Return results of one shape and dtype for "
            'every sample (a sum of nothing is Python\'s integer 0: begin it with 0.0 or zeros), or use out="list"'
        )
    return (trees[0],), [classes[0]]


def _result_of(graph: Any, tables: Tables) -> str:
    return describe_result(graph.out_tree, [tables.classes[c] for c in graph.out_classes])


def describe_result(tree: Any, classes: Sequence[ValueClass]) -> str:
    """Returns a result's tree as text, with the shapes and dtypes of its leaves."""
    return str(tree.unflatten(map(str, classes))).replace("'", "")


def rows_of_outputs(
    graphs: Sequence[Any], rows: np.ndarray, out: str, classes: Sequence[int], least: Sizes, headroom_for: int
) -> tuple[tuple[np.ndarray, ...], Ragged | None]:
    """Computes `Plan.out_rows` and `Plan.ragged`.

    Args:
        graphs: the graph of each sample.
        rows: int32; the rows of the leaves of all results, sample after sample.
        out: the form of the outputs; see `jitbatch`.
        classes: the value classes of the leaves of a result or an item, or of all leaves.
        least: the least sizes. Only the number of items or of output rows is read.
        headroom_for: where the number of rows may vary, the number of samples to add headroom for; 0 for none.

    Returns:
        The rows of the outputs, and for `out="ragged"` the `Ragged` without its rows, else None.
    """
    if out == "ragged":
        return ragged_outputs(graphs, rows, len(classes), least.items, headroom_for)
    if out == "rows":
        return _rows_by_class(graphs, rows, classes, least, headroom_for), None
    if out == "stack" and len(classes) == 1:
        return (rows,), None
    if out == "stack":
        return tuple(np.ascontiguousarray(column) for column in rows.reshape(len(graphs), -1).T), None
    return tuple(np.split(rows, np.cumsum([len(graph.outputs) for graph in graphs])[:-1])), None


def _rows_by_class(
    graphs: Sequence[Any], rows: np.ndarray, classes: Sequence[int], least: Sizes, headroom_for: int
) -> tuple[np.ndarray, ...]:
    """Returns the rows of the outputs of each class, sample after sample, and then padding."""
    of_row = np.concatenate([np.array(graph.out_classes, np.int64) for graph in graphs])
    padded = []
    for class_id in classes:
        taken = rows[of_row == class_id].astype(np.int32)
        counts = np.array([graph.out_classes.count(class_id) for graph in graphs])
        more = float(headroom(counts, headroom_for)) if headroom_for else 1.0
        size = max(round_up(math.ceil(more * len(taken))), least.outputs.get(class_id, 0))
        more_rows = size - len(taken)
        padded.append(np.pad(taken, (0, more_rows), mode="edge") if len(taken) else np.zeros(more_rows, np.int32))
    return tuple(padded)
