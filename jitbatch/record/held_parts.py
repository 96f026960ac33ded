"""Parts of arguments that are known to contain only values, so that they are checked once.

A recursion through a decorated function is called on a tree, on its subtrees, and so on. Checking all leaves for every
call would take quadratic time in the depth. So the first call with an argument stores all containers inside of it.
Trees of tuples cannot change. Trees with lists or dicts are checked again after that first call has ended.
"""

from collections.abc import Sequence
from typing import Any

from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import Value
from jitbatch.util.static import Static


class HeldParts:
    """The containers of values in the arguments of one recording.

    Attributes:
        parts: the containers, by `id`.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Any] = {}

    def hold(self, arg: Any) -> tuple[Sequence[Any], bool] | None:
        """Store all containers of an argument that consists of values, tuples, lists and dicts only.

        Returns the containers that are new, and whether all of them are tuples. Returns None for other arguments.
        """
        pending, containers, are_tuples = [arg], [], True
        while pending:
            part = pending.pop()
            kind = type(part)
            if kind is Value or part is None or kind is Static or id(part) in self.parts:
                continue
            if kind is tuple or (isinstance(part, tuple) and is_named_tuple(kind, part)):
                pending += part
            elif kind is list or kind is dict:
                are_tuples = False
                pending += part.values() if isinstance(part, dict) else part
            else:
                self.forget(containers)
                return None
            containers.append(part)
            self.parts[id(part)] = part
        return containers, are_tuples

    def forget(self, containers: Sequence[Any]) -> None:
        """Remove containers. They may change from now on."""
        for part in containers:
            self.parts.pop(id(part), None)

    def release(self) -> None:
        """Drop all references."""
        self.parts.clear()
