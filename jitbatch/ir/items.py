"""A sample's result as items, for `out="ragged"`.

The outermost list or tuple of a result holds items, and so do lists or tuples of the same type inside it. Anything else
in it is an item: an array, a dict, a tuple in a list. So the code that returns a result decides what an item is, never
the number of items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jitbatch.util.errors import OutputError


@dataclass(frozen=True, eq=False)
class Items:
    """The items of one result.

    Attributes:
        outline: the tree of the result with items as leaves.
        trees: the tree of each item.
        classes: the value classes of the leaves of each item.
    """

    outline: Any
    trees: tuple[Any, ...]
    classes: tuple[tuple[int, ...], ...]

    @property
    def are_equal(self) -> bool:
        return len(set(self.trees)) <= 1 and len(set(self.classes)) <= 1


def split_items(out_tree: Any, out_classes: Sequence[int]) -> Items:
    """The items of a result with this tree and these value classes of leaves."""
    result = out_tree.unflatten(out_classes)
    found, outline = jax.tree.flatten(result, is_leaf=lambda node: _is_item(node, type(result)))
    flat = [jax.tree.flatten(item) for item in found]
    return Items(outline, tuple(tree for _, tree in flat), tuple(tuple(leaves) for leaves, _ in flat))


def _is_item(node: Any, outermost: type) -> bool:
    is_container = type(node) is outermost and outermost in (list, tuple)
    return not is_container and bool(jax.tree.leaves(node))


def common_item(results: Sequence[Items], classes: Any) -> tuple[Any, tuple[int, ...]] | None:
    """The tree and the value classes that the items of all samples have in common; None if there are no items.

    Args:
        results: the items of each sample.
        classes: the table of value classes, for the message.

    Raises:
        OutputError: two items have different trees or value classes.
    """
    first = next(((s, items) for s, items in enumerate(results) if items.trees), None)
    if first is None:
        return None
    sample, items = first
    wanted = items.trees[0], items.classes[0]
    for index, items in enumerate(results):
        if items.trees and not (items.are_equal and (items.trees[0], items.classes[0]) == wanted):
            pairs = zip(items.trees, items.classes, strict=True)
            position, other = next((p, item) for p, item in enumerate(pairs) if item != wanted)
            raise OutputError(_difference(index, items.outline, position, other, sample, wanted, classes))
    return wanted


def _difference(index: int, outline: Any, position: int, other: Any, sample: int, wanted: Any, classes: Any) -> str:
    paths = jax.tree_util.tree_leaves_with_path(outline.unflatten(range(outline.num_leaves)))
    at = jax.tree_util.keystr(paths[position][0])
    message = (
        f"sample {index} has the item {_describe(other, classes)}{f' at {at}' if at else ''}, but the first item of "
        f'sample {sample} is {_describe(wanted, classes)}. out="ragged" is for items of one structure, shape and '
        "dtype: "
    )
    (tree, leaves), (wanted_tree, wanted_leaves) = other, wanted
    if tree == wanted_tree and all(
        _differ_in_length(classes[class_id], classes[wanted_id])
        for class_id, wanted_id in zip(leaves, wanted_leaves, strict=True)
    ):
        return message + 'an array of varying length is one value; return a list of its rows, or use out="list"'
    return message + (
        "the outermost list or tuple of a result, with those of its type inside it, holds the items, and anything else "
        'is one item. Return equal items, e.g. a list of dicts, or use out="list"'
    )


def _differ_in_length(leaf: Any, other: Any) -> bool:
    """Whether two value classes are equal but for the length of their first axis."""
    return leaf.dtype == other.dtype and bool(leaf.shape and other.shape) and leaf.shape[1:] == other.shape[1:]


def _describe(item: tuple[Any, Sequence[int]], classes: Any) -> str:
    tree, leaves = item
    return str(tree.unflatten([str(classes[c]) for c in leaves])).replace("'", "")
