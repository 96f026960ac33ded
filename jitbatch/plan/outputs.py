"""The results of a batch: their trees, the classes of their leaves, and the rows that hold them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitbatch.ir.items import common_item
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.plan.ragged import Ragged, ragged_outputs
from jitbatch.util.errors import OutputError
from jitbatch.util.key_order import sorted_tree


def outputs_of(
    graphs: Sequence[Any], tables: Tables, out: str, known: tuple[Any, tuple[int, ...]] | None
) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """Returns the trees of the results, and the value classes of their leaves.

    For `out="stack"` there is one tree for all samples, for `out="list"` one for each sample, for `out="ragged"` the
    tree of an item. Dicts in a list of results keep the order of their keys. Stacked results have sorted keys, as
    `jax.vmap` returns them.

    Args:
        graphs: for each sample its `Graph` or `SampleProgram`; only `out_tree`, `out_classes` and `items` are read.
        tables: the tables of the function.
        out: the form of the outputs; see `jitbatch`.
        known: the tree of an item and its classes if an earlier plan knows them, else None.
    """
    if out == "list":
        return tuple(g.out_tree for g in graphs), [g.out_classes for g in graphs]
    if out == "ragged":
        item = common_item([graph.items for graph in graphs], tables.classes) or known
        if item is None:
            raise OutputError(
                "no sample of the batch has an item, and so nothing tells what an item looks like. Leave such batches "
                "out, or plan them `like` a plan with items"
            )
        return (item[0],), [item[1]]
    trees, classes = [sorted_tree(graph.out_tree) for graph in graphs], [graph.out_classes for graph in graphs]
    if trees.count(trees[0]) < len(trees) or classes.count(classes[0]) < len(classes):
        differs = [one != (trees[0], classes[0]) for one in zip(trees, classes, strict=True)]
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
    graphs: Sequence[Any], rows: np.ndarray, out: str, leaves: int, items: int, headroom_for: int
) -> tuple[tuple[np.ndarray, ...], Ragged | None]:
    """Computes `Plan.out_rows` and `Plan.ragged`.

    Args:
        graphs: the graph of each sample.
        rows: int32; the rows of the leaves of all results, sample after sample.
        out: the form of the outputs; see `jitbatch`.
        leaves: the number of leaves of a result or an item.
        items: for ragged results, the least number of items.
        headroom_for: for ragged results, the number of samples to add headroom for; 0 for none.

    Returns:
        The rows of the outputs, and for `out="ragged"` the `Ragged` without its rows, else None.
    """
    if out == "ragged":
        return ragged_outputs(graphs, rows, leaves, items, headroom_for)
    if out == "stack":
        return tuple(np.ascontiguousarray(column) for column in rows.reshape(len(graphs), -1).T), None
    return tuple(np.split(rows, np.cumsum([len(graph.outputs) for graph in graphs])[:-1])), None
