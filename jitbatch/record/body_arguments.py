"""The arguments of a running body: copies of the call's arguments, with aliases in place of their leaves.

Each alias has its own identity. So the body of `f(x, x)` is recorded like that of `f(x, y)`, and arguments differ from
closed-over values. A body that calls other decorated functions is not folded into cells, and needs no aliases.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import tree_leaves

from jitbatch.record.call_arguments import FlatCall
from jitbatch.record.mutation import changed_argument
from jitbatch.util.array_leaves import is_array


class BodyArguments:
    """The arguments of a running body.

    Attributes:
        arguments: the arguments for the body.
        leaves_of: the leaves of each argument, as values inside the body.
        is_shared: for each argument, whether all of its leaves are shared values.
        aliases: the row ids of the new aliases.
        for_all: whether every leaf has an alias. Then the recorded body is valid for other arguments of this structure.
    """

    __slots__ = ("aliases", "arguments", "for_all", "is_shared", "leaves_of")

    def __init__(self) -> None:
        self.arguments: list[Any] = []
        self.leaves_of: list[Sequence[Any]] = []
        self.is_shared: list[bool] = []
        self.aliases: list[int | None] = []
        self.for_all = False

    def check_unchanged(self, sample: str) -> None:
        """Raise an error if the body has changed an argument in place, because the caller would not see the change."""
        for arg, leaves, is_shared in zip(self.arguments, self.leaves_of, self.is_shared, strict=True):
            check_holds(arg, leaves, sample, is_shared)


def aliased(call: FlatCall, alias: Callable[[Any], Any], with_shared: bool) -> BodyArguments:
    """Arguments with an alias for each leaf.

    Arguments with only shared values are passed unchanged. They get aliases if `with_shared` is set, or if one of the
    values occurs twice.
    """
    pairs = zip(call.leaves_of, call.is_shared, strict=True)
    shared = [id(leaf) for leaves, is_shared in pairs if is_shared for leaf in leaves]
    body = BodyArguments()
    body.for_all = not shared or with_shared or len(set(shared)) < len(shared)
    body.is_shared = call.is_shared
    for arg, leaves, tree, is_shared in zip(call.arguments, call.leaves_of, call.trees, call.is_shared, strict=True):
        if not is_shared or body.for_all:
            aliases = list(map(alias, leaves))
            body.aliases += [new.row for new, leaf in zip(aliases, leaves, strict=True) if new is not leaf]
            arg, leaves = tree.unflatten(aliases), aliases
        body.arguments.append(arg)
        body.leaves_of.append(leaves)
    return body


def check_holds(arg: Any, leaves: Sequence[Any], sample: str, is_shared: bool = False) -> None:
    """Raise an error if an argument does not have these leaves any more."""
    after = tree_leaves(arg)
    if list(map(id, after)) == list(map(id, leaves)):
        return
    if len(after) != len(leaves) or any(
        one is not other and (is_array(one) or is_array(other)) for one, other in zip(leaves, after, strict=True)
    ):
        raise changed_argument(arg, leaves, sample, is_shared)
