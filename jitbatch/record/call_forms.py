"""Forms of the calls of one function: names, axes and layout of its arguments, computed once for each number of
arguments."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from jitbatch.record.arguments import Arguments, Part, take_apart
from jitbatch.util.caches import Cache

MAX_FORMS = 16
"""The number of argument counts for which a function stores a `Form`."""


class Form(NamedTuple):
    """A call with a certain number of positional arguments. Each argument is shared or mapped as a whole."""

    names: tuple[str, ...]
    axes: tuple[int | None, ...]
    layout: tuple[tuple[str, Any, int], ...]


class CallForms:
    """Splits the arguments of one function's calls.

    For a call without keywords, the number of arguments alone determines names, axes, and whether the call fits the
    signature. Forms are stored for calls in which each argument is shared or mapped as a whole.
    """

    def __init__(self, signature: inspect.Signature, in_axes: Any, is_method: bool):
        self._given = signature, in_axes, is_method
        self._forms = Cache(MAX_FORMS)

    def take_apart(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Match arguments with `in_axes` (see `record/arguments`)."""
        form = None if kwargs else self._forms.get(len(args))
        if form is not None:
            return Arguments(list(map(Part, form.names, form.axes, args)), form.layout, len(args))
        arguments = take_apart(*self._given, args, kwargs)
        parts = arguments.parts
        is_whole = len(parts) == len(args) and all(part.value is arg for part, arg in zip(parts, args, strict=True))
        if is_whole and not kwargs:
            names = tuple(part.name for part in parts)
            self._forms.put(len(args), Form(names, arguments.axes, arguments.layout))
        return arguments
