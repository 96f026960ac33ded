"""Values that must not be used after the call that made them has ended.

The body of a decorated function does not run for every call. What it puts into a list, a dictionary or an object would
be missing for the calls that are replayed. So once a body has ended, everything that it has seen is hidden but for its
result, and using a hidden value is an error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.tree_util import tree_leaves

from jitbatch.record.values import Value
from jitbatch.util.array_leaves import is_array
from jitbatch.util.errors import LeakError
from jitbatch.util.sites import describe_function


class Leaks:
    """The rows that open bodies have seen, and the rows of bodies that have ended.

    Attributes:
        exposed: row ids that open bodies have seen, the outermost body's first.
        hidden: for each row id that must not be used any more, the function whose call has ended.
    """

    def __init__(self, sample: str, where: Callable[[], str]):
        self.exposed: list[int | None] = []
        self.hidden: dict[int | None, Callable[..., Any]] = {}
        self._sample = sample
        self._where = where

    def release(self) -> None:
        """Let go of everything, and of the recording, which would wait for the garbage collector."""
        self.hidden.clear()
        self.exposed.clear()
        self._where = str

    def end_body(
        self, fun: Callable[..., Any], first: int, aliases: Iterable[int | None], result: Any, scope: int
    ) -> None:
        """Hide what a body has seen, but for its result.

        A result with leaves that are no arrays may hold anything. Nothing is hidden then: such a body runs for every
        call.

        Args:
            fun: the function whose body has ended.
            first: how many rows were exposed when it began.
            aliases: the row ids of the aliases that it was called with.
            result: what it returned.
            scope: the scope that it was called in, 0 for the sample's function.
        """
        leaves = (result,) if type(result) is Value else tree_leaves(result)
        if not all(type(leaf) is Value or is_array(leaf) for leaf in leaves):
            return
        seen = self.exposed[first:]
        seen += aliases
        del self.exposed[first:]
        returned = {leaf.row for leaf in leaves if type(leaf) is Value}
        returned.add(None)  # shared values are not hidden
        for row in seen:
            if row not in returned:
                self.hidden[row] = fun
            elif scope and row is not None:
                self.exposed.append(row)

    def check(self, values: Sequence[Any]) -> None:
        """Raise if a value is hidden."""
        if self.hidden:
            self.check_rows([value.row for value in values if type(value) is Value])

    def check_rows(self, rows: Sequence[int | None]) -> None:
        """Raise if a row is hidden."""
        if self.hidden.keys().isdisjoint(rows):
            return
        fun = next(self.hidden[row] for row in rows if row in self.hidden)
        raise LeakError(
            f"a value of a call of {describe_function(fun)} is used{self._where()} after the call has ended, and was "
            f"not returned by it, while {self._sample} was recorded. The body of a decorated function does not run for "
            "every call: on arguments of a structure that it has met its operations are recorded again without it, and "
            "what it puts into a list, a dictionary or an object is missing. Return the value, or do not decorate the "
            "function."
        )
