"""The common part of models of trees: an output at each node, computed from the outputs of its children."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flax import nnx
from jax import Array

from jitbatch.data.trees import Dependency, Tree

Value = TypeVar("Value")


class TreeEncoder(Protocol):
    """A module that reads a tree of words."""

    embed: nnx.Embed

    def outputs(self, tree: Any) -> list[Array]:
        """The vectors of all nodes in post-order: the root's is the last."""
        ...


def post_order(tree: Tree, leaf: Callable[[int], Value], compose: Callable[..., Value]) -> list[Value]:
    """The values of all nodes of a tree: of its words, and of inner nodes from those of their children.

    >>> post_order(((1, 2), 3), lambda word: word, lambda left, right: 10 * left + right)
    [1, 2, 12, 3, 123]
    """
    if not isinstance(tree, tuple):
        return [leaf(tree)]
    values: list[Value] = []
    children: list[Value] = []
    for child in tree:
        values += post_order(child, leaf, compose)
        children.append(values[-1])
    return [*values, compose(*children)]


def dependency_post_order(tree: Dependency, node: Callable[[int, list[Value]], Value]) -> list[Value]:
    """The values of all nodes of a tree that has a word at each: from the word and the values of the children.

    >>> from jitbatch.data.trees import dependency_tree
    >>> dependency_post_order(dependency_tree([7, 8, 9], [2, 0, 2]), lambda word, children: word + sum(children))
    [7, 9, 24]
    """
    values: list[Value] = []
    children: list[Value] = []
    for child in tree.children:
        values += dependency_post_order(child, node)
        children.append(values[-1])
    return [*values, node(tree.token, children)]
