"""What is remembered of the decorated functions that a function calls."""

from collections.abc import Callable, Hashable
from typing import Any

from jitbatch.record.abstract_eval import AbstractEvaluation
from jitbatch.record.call_arguments import weakly
from jitbatch.record.cell_body import CellBody
from jitbatch.record.templates import Template
from jitbatch.util import passes
from jitbatch.util.caches import Cache, CacheInfo

MAX_COMPOSITES = 4096
"""Forms that are remembered of a function that calls others on them."""


class KnownCalls:
    """Caches of calls, of one function and one kind of shared arguments.

    Recording a call needs none of them: with no room for entries, the body of every call runs.

    Attributes:
        remembers: whether anything is remembered (see `passes.without_caches`).
        templates: by a function and the forms of its arguments.
        cell_bodies: by a function and the structure of its arguments, which says nothing of shared values.
        functions: by the code of a function, `FunctionCalls`.
        abstract: avals of operations outside of decorated functions.
    """

    def __init__(self, maxsize: int):
        self.remembers = passes.remembers()
        maxsize = maxsize if self.remembers else 0
        self.templates = Cache(maxsize)
        self.cell_bodies = Cache(maxsize)
        self.functions = Cache(maxsize)
        self.abstract = AbstractEvaluation()

    def find(self, forms: tuple[Hashable, ...]) -> Template | None:
        """The template for a function and the forms of its arguments. A form of None was not met before."""
        if None in forms:
            self.templates.count(0, 1)
            return None
        return self.templates.get(forms)

    def function(self, fun: Callable[..., Any]) -> "FunctionCalls":
        """What is known of all calls of a function."""
        return self.functions.get_or_make(code_of(fun), FunctionCalls)

    def remember(
        self, forms: tuple[Hashable, ...], template: Template, signature: Hashable, body: CellBody, for_all: bool
    ) -> None:
        """Keep the template of a call, and its body if that serves other shared values `for_all`."""
        if for_all:
            self.cell_bodies.put(signature, body)
        self.templates.put(forms, template)

    def info(self) -> CacheInfo:
        """Hits and misses of calls, where a miss is a call whose body ran; the size is that of the templates."""
        bodies, info = self.cell_bodies.info(), self.templates.info()
        return info._replace(hits=info.hits + bodies.hits, misses=info.misses - bodies.hits)


class FunctionCalls:
    """What is known of the calls of a function.

    Attributes:
        has_cell_calls: whether some call called no other decorated function.
        composites: the forms of calls that called others, as far as these forms have ids.
        has_composites: whether there was such a call.
    """

    __slots__ = ("composites", "has_cell_calls", "has_composites")

    def __init__(self) -> None:
        self.has_cell_calls = self.has_composites = False
        self.composites: set[tuple[Hashable, ...]] = set()

    @property
    def is_composite(self) -> bool:
        """Whether all calls so far called others."""
        return self.has_composites and not self.has_cell_calls

    def is_composite_on(self, forms: tuple[Hashable, ...]) -> bool:
        """Whether a call is likely to call others: it did so on arguments of these forms, or some call did and these
        forms are new."""
        return self.has_composites and (None in forms or forms in self.composites)

    def note_composite(self, forms: tuple[Hashable, ...]) -> None:
        """Note a call that called others."""
        self.has_composites = True
        if None not in forms and len(self.composites) < MAX_COMPOSITES:
            self.composites.add(forms)

    def note_cell_call(self, forms: tuple[Hashable, ...]) -> None:
        """Note a call that called no others."""
        self.has_cell_calls = True
        self.composites.discard(forms)


def code_of(fun: Callable[..., Any]) -> Hashable:
    """What functions have in common that are made anew for each sample."""
    return getattr(fun, "__code__", None) or weakly(fun)
