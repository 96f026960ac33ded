"""What an item of a ragged result is depends on types, never on how many there are."""

from typing import Any

import jax
import pytest

from jitbatch.ir.items import Items, common_item, split_items
from jitbatch.ir.tables import ValueClass
from jitbatch.util.errors import OutputError

CLASSES = [ValueClass((3,), "float32"), ValueClass((5,), "float32"), ValueClass((), "int32")]


def items_of(result: Any) -> Items:
    """The items of a result whose leaves are numbers of classes."""
    leaves, tree = jax.tree.flatten(result)
    return split_items(tree, leaves)


@pytest.mark.parametrize(
    ("result", "classes"),
    [
        ([], ()),
        ([0, 0], ((0,), (0,))),
        ([(0, 2), (0, 2)], ((0, 2), (0, 2))),
        ((0, (0, (0, 0))), ((0,), (0,), (0,), (0,))),
        ([[0], [], [0, [0]]], ((0,), (0,), (0,))),
        ([{"a": 0, "b": 2}], ((0, 2),)),
        ({"a": 0}, ((0,),)),
        (0, ((0,),)),
    ],
)
def test_items(result: Any, classes: Any) -> None:
    items = items_of(result)
    assert items.classes == classes
    assert items.outline.num_leaves == len(items.trees) == len(classes)


def test_items_and_outline_make_the_result() -> None:
    result = [{"a": 0}, [{"a": 0}, []]]
    items = items_of(result)
    made = [tree.unflatten(classes) for tree, classes in zip(items.trees, items.classes, strict=True)]
    assert items.outline.unflatten(made) == result


def test_the_item_that_all_samples_have() -> None:
    tree, classes = common_item([items_of([]), items_of([0]), items_of([0, 0])], CLASSES) or (None, None)
    assert (tree, classes) == (jax.tree.structure(0), (0,))
    assert common_item([items_of([]), items_of([])], CLASSES) is None


def test_an_item_that_differs_is_named() -> None:
    with pytest.raises(OutputError, match=r"sample 1 has the item float32\[5\] at \[1\], .* return a list of its rows"):
        common_item([items_of([0]), items_of([0, 1])], CLASSES)
    with pytest.raises(OutputError, match=r"sample 1 has the item int32\[\] at \[0\], .* Return equal items"):
        common_item([items_of([0]), items_of([2])], CLASSES)
