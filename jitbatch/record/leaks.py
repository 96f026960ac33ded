"""Detection of values that escape from a sample, or from the body of a decorated function.

A value belongs to the recording of one sample. Its use in another recording is an error.

The body of a decorated function does not run in every call. If it writes values into a list, a dictionary or an object,
replayed calls do not. So after a body has ended, all values inside of it except its result are hidden. The use of a
hidden value is an error.
"""

import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from jax.tree_util import tree_leaves

from jitbatch.record.values import Value
from jitbatch.util.array_leaves import is_array
from jitbatch.util.errors import LeakError
from jitbatch.util.sites import describe_function


class Leaks:
    """The rows that running bodies have seen, and the hidden rows of finished bodies.

    Args:
        trace: the recording.
        sample: its name, for errors.
        where: returns the place in the user's code, for errors.

    Attributes:
        exposed: the row ids that running bodies have seen, from the outermost body to the innermost.
        hidden: for each hidden row id, the function whose call has ended.
    """

    def __init__(self, trace: Any, sample: str, where: Callable[[], str]):
        self._trace = weakref.ref(trace)
        self.exposed: list[int | None] = []
        self.hidden: dict[int | None, Callable[..., Any]] = {}
        self._sample = sample
        self._where = where

    def release(self) -> None:
        """Drop all references. Otherwise they would keep the recording alive until the next garbage collection."""
        self.hidden.clear()
        self.exposed.clear()
        self._where = str

    def end_body(
        self, fun: Callable[..., Any], first: int, aliases: Iterable[int | None], result: Any, scope: int
    ) -> None:
        """Hide all values that a body has seen, except its result.

        If the result has leaves that are not arrays, nothing is hidden: such leaves may hold anything, so this body
        runs in every call.

        Args:
            fun: the function of the body.
            first: the number of exposed rows before the body.
            aliases: the row ids of the aliases in its arguments.
            result: its return value.
            scope: the scope of the call, 0 for the sample's function.
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
        """Raise an error if one of the values is hidden, or belongs to another recording."""
        self._check_own(values)
        if self.hidden:
            self.check_rows([value.row for value in values if type(value) is Value])

    def check_arguments(self, args: Iterable[Any], known: Container[int]) -> None:
        """Raise an error if a leaf of an argument belongs to another recording. `known` has the `id`s of objects of
        this recording."""
        for arg in args:
            if type(arg) is Value or id(arg) not in known:
                self._check_own((arg,) if type(arg) is Value else tree_leaves(arg))

    def _check_own(self, values: Iterable[Any]) -> None:
        trace = self._trace()
        stray = next((value for value in values if type(value) is Value and value._trace is not trace), None)
        if stray is None:
            return
        other = getattr(stray._trace, "sample", "another sample")
        raise LeakError(
            f"{stray} is used{self._where()} while {self._sample} was recorded, but it belongs to the recording of "
            f"{other}. A sample cannot use what another one has computed and put into a list, a dictionary or an "
            "object: the function runs once for each structure, with abstract values. Return it, and combine the "
            "results after `.batch`."
        )

    def check_rows(self, rows: Sequence[int | None]) -> None:
        """Raise an error if one of the rows is hidden."""
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
