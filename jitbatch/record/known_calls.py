"""Caches of decorated calls. A call with known forms of arguments is replayed without its body."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from jitbatch.record.abstract_eval import AbstractEvaluation
from jitbatch.record.body_arguments import aliased
from jitbatch.record.call_arguments import weakly
from jitbatch.record.calls import record_call
from jitbatch.record.cell_body import CellBody
from jitbatch.record.templates import Template, make_template
from jitbatch.util import passes
from jitbatch.util.caches import Cache, CacheInfo

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder

MAX_COMPOSITES = 4096
"""The number of forms with composite calls that are stored for a function."""


class KnownCalls:
    """The caches of decorated calls, for one function and one kind of shared arguments.

    Recording works without them: if the caches have no room, the body of every call runs.

    Attributes:
        remembers: whether the caches are used (see `passes.without_caches`).
        templates: by a function and the forms of its arguments.
        cell_bodies: by a function and the structure of its arguments, without the identity of shared values.
        functions: `FunctionCalls`, by the code of a function.
        abstract: avals of operations outside of decorated functions.
        compiled: the table of templates of the compiled core.
    """

    def __init__(self, maxsize: int):
        self.remembers = passes.remembers()
        maxsize = maxsize if self.remembers else 0
        self.templates = Cache(maxsize)
        self.cell_bodies = Cache(maxsize)
        self.functions = Cache(maxsize)
        self.compiled = Cache(1)
        self.abstract = AbstractEvaluation()

    def find(self, forms: tuple[Hashable, ...]) -> Template | None:
        """The template for a function and the forms of its arguments, or None. A form of None is new."""
        if None in forms:
            self.templates.count(0, 1)
            return None
        return self.templates.get(forms)

    def function(self, fun: Callable[..., Any]) -> "FunctionCalls":
        """The statistics of a function's calls."""
        return self.functions.get_or_make(code_of(fun), FunctionCalls)

    def remember(
        self, forms: tuple[Hashable, ...], template: Template, signature: Hashable, body: CellBody, for_all: bool
    ) -> None:
        """Store the template of a call. If the body is valid `for_all` shared values, store the body, too."""
        if for_all:
            self.cell_bodies.put(signature, body)
        self.templates.put(forms, template)

    def info(self) -> CacheInfo:
        """Hits and misses of calls. A miss is a call whose body ran. The size is the number of templates."""
        bodies, info = self.cell_bodies.info(), self.templates.info()
        return info._replace(hits=info.hits + bodies.hits, misses=info.misses - bodies.hits)


class FunctionCalls:
    """The statistics of a function's calls.

    Attributes:
        has_cell_calls: whether at least one call was a cell call.
        composites: the forms of composite calls, if the forms have ids.
        has_composites: whether at least one call was composite.
    """

    __slots__ = ("composites", "has_cell_calls", "has_composites")

    def __init__(self) -> None:
        self.has_cell_calls = self.has_composites = False
        self.composites: set[tuple[Hashable, ...]] = set()

    @property
    def is_composite(self) -> bool:
        """Whether all calls so far were composite."""
        return self.has_composites and not self.has_cell_calls

    def is_composite_on(self, forms: tuple[Hashable, ...]) -> bool:
        """Whether a call is probably composite: a call with these forms was composite, or the forms are new and some
        call was composite."""
        return self.has_composites and (None in forms or forms in self.composites)

    def note_composite(self, forms: tuple[Hashable, ...]) -> None:
        """Count a composite call."""
        self.has_composites = True
        if None not in forms and len(self.composites) < MAX_COMPOSITES:
            self.composites.add(forms)

    def note_cell_call(self, forms: tuple[Hashable, ...]) -> None:
        """Count a cell call."""
        self.has_cell_calls = True
        self.composites.discard(forms)


def record_and_remember(
    recorder: "Recorder", function: FunctionCalls, fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...],
    kwargs: dict[str, Any], forms: tuple[Hashable, ...],
) -> tuple[Template | None, Any]:  # fmt: skip
    """Record and cache a new call.

    Returns the template of a cell call, to be replayed; or None and the result of a composite call, which is recorded
    already.

    Args:
        recorder: the recording.
        function: the statistics of the function's calls.
        fun: the function.
        key: identifies the function.
        args, kwargs: the arguments.
        forms: the key and the forms of the arguments.
    """
    known = recorder.known
    body = None
    call = recorder.arguments.take_apart(fun, args, kwargs)
    cells = known.cell_bodies.get(call.signature)
    if cells is None:
        # Aliases of shared values take time, and a composite call does not need them.
        body = aliased(call, recorder.alias, with_shared=not function.has_composites)
        cells, result = record_call(recorder, fun, len(args), tuple(kwargs), body)
        if cells is None:
            function.note_composite(forms)
            return None, result
    function.note_cell_call(forms)
    template = make_template(cells, call.leaves, call.positions, recorder.rows)
    if known.remembers and not cells.closes_over_tracer:
        forms, _ = recorder.arguments.describe(key, args, kwargs, is_new=True)
        known.remember(forms, template, call.signature, cells, for_all=body is not None and body.for_all)
    return template, None


def code_of(fun: Callable[..., Any]) -> Hashable:
    """A key that is equal for functions which were created from the same code, one for each sample."""
    return getattr(fun, "__code__", None) or weakly(fun)
