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
    """The result trees and the classes of their leaves: one for all samples, one for each, or those of an item. Of
    graphs, or of whatever else has an `out_tree`, `out_classes` and `items`. Only a list of results keeps the order of
    keys in dicts: what is stacked has them sorted, as `jax.vmap` returns them."""
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
    """A result's tree, with the shapes and dtypes of its leaves."""
    return str(tree.unflatten(map(str, classes))).replace("'", "")


def rows_of_outputs(
    graphs: Sequence[Any], rows: np.ndarray, out: str, leaves: int, items: int, headroom_for: int
) -> tuple[tuple[np.ndarray, ...], Ragged | None]:
    """The rows of outputs as a plan holds them, and for `out="ragged"` all else that the result has.

    Args:
        graphs: one for each sample.
        rows: int32; the rows of the leaves of all results, sample after sample.
        leaves: how many leaves a result, or an item, has.
        items, headroom_for: of ragged results, at least so many items, and room for those of so many samples.
    """
    if out == "ragged":
        return ragged_outputs(graphs, rows, leaves, items, headroom_for)
    if out == "stack":
        return tuple(np.ascontiguousarray(column) for column in rows.reshape(len(graphs), -1).T), None
    return tuple(np.split(rows, np.cumsum([len(graph.outputs) for graph in graphs])[:-1])), None
