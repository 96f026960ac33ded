"""Parts of arguments that are known to hold nothing but values, so that nobody has to look at them again.

A recursion through a decorated function is called on a tree, on its subtrees, and so on. To look at all leaves for
every call would take time in the square of the depth. So what lies in an argument is noted when the first call is
given it. Trees of tuples cannot change; trees with lists or dicts are looked at again when that first call ends.
"""

from collections.abc import Sequence
from typing import Any

from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import Value
from jitbatch.util.static import Static


class HeldParts:
    """The containers of values that calls of one recording were given.

    Attributes:
        parts: these, by `id`.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Any] = {}

    def hold(self, arg: Any) -> tuple[Sequence[Any], bool] | None:
        """Note all containers in an argument that is made of values, tuples, lists and dicts alone.

        Returns those that were not noted before, and whether they are all tuples; None for other arguments.
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
        """Let go of containers, which may change from now on."""
        for part in containers:
            self.parts.pop(id(part), None)

    def release(self) -> None:
        """Let go of everything."""
        self.parts.clear()
