"""Recording of one sample: the operations and the decorated calls of its function.

During recording, the array leaves of the sample and of the shared arguments are abstract `Value`s. Decorated calls
become nodes of a `GraphBuilder`. Bare operations become `Op`s (see `record/operations`), and `record/nodes` makes nodes
from them at the end.

To record a new call, its body runs (`record/calls`). A known call is replayed instead (`record/replay`).
"""

from collections.abc import Callable, Hashable
from types import CodeType
from typing import Any

from jitbatch.ir.tables import Tables
from jitbatch.record import compiled_calls
from jitbatch.record.call_arguments import CallArguments
from jitbatch.record.calls import run_body
from jitbatch.record.composite_calls import composite_call
from jitbatch.record.data_numbers import DataNumbers
from jitbatch.record.held_parts import HeldParts
from jitbatch.record.known_calls import KnownCalls, record_and_remember
from jitbatch.record.nodes import Part
from jitbatch.record.operations import OperationRecorder
from jitbatch.record.replay import replay
from jitbatch.record.templates import Template
from jitbatch.record.values import Op, Value


class Recorder(OperationRecorder):
    """The current trace during the recording of one sample.

    Args:
        tables: the tables for the ids of the graph.
        known: the cached calls of this and other recordings.
        granularity: `"subgraph"` if decorated calls are nodes.
        outermost: the code that calls the sample's function.
        sample: the name of the recorded sample, for errors.
        may_close_over_tracers: whether the graph may hold values of an outer transformation.

    Attributes:
        arguments: the arguments of calls.
        held: parts of arguments that are known to contain only values.
        composites: keys of functions whose calls have all been composite.
        scopes: the number of bodies that have run.
        caller: the object of the compiled core that records known calls; None if Python does (see
            `record/compiled_calls`).
        found: the template of the last call, None if later recordings cannot use one.
        parts: the nodes before each cut (see `record/nodes`).
        cut_ops: the bare operations on shared values before the last cut.
    """

    __slots__ = ("caller", "found", "scope")  # the compiled core reads these slots

    def __init__(
        self, tables: Tables, known: KnownCalls, granularity: str, outermost: CodeType, sample: str,
        may_close_over_tracers: bool = False,
    ):  # fmt: skip
        sites = outermost, run_body.__code__
        super().__init__(tables, known.abstract, granularity, sites, sample, may_close_over_tracers)
        self.known = known
        self.arguments = CallArguments(tables, self.rows, sample)
        self.held = HeldParts()
        self.scopes = 0
        self.composites: set[Hashable] = set()
        self.found: Template | None = None
        self.parts: list[Part] = []
        self.cut_ops: list[Op] = []
        self._has_boundaries = granularity == "subgraph"
        # For this recording, without a lock. Beside each template is the plain tuple of its fields.
        self._templates: dict[Hashable, tuple[Template, tuple[Any, ...]]] = {}
        self._calls = self._looked_up = self._composite_calls = 0
        self.caller = compiled_calls.caller_of(self) if self._has_boundaries else None
        if self.caller is not None:
            self.arguments.on_shared = self.caller.share

    @property
    def calls(self) -> int:
        """The number of calls of decorated functions."""
        return self._calls if self.caller is None else self._calls + self.caller.count

    def follow_answers(self) -> None:
        """Record an asynchronous sample: numbers, which may come from answers, are data."""
        self.data_numbers = DataNumbers(self)

    def release(self) -> None:
        """Drop all references, and add this recording's hits and misses to the counters."""
        self.ops += self.cut_ops
        self.data_numbers = None
        super().release()
        self.arguments.release()
        self.held.release()
        if self.caller is not None:
            self.caller.release()
        found = self.calls - self._looked_up - self._composite_calls
        self.known.templates.count(found, self._composite_calls)

    def call(self, fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a decorated call; `key` identifies the function. A known call is replayed, and the body of any other
        runs. At other granularities than `"subgraph"`, the call is no boundary."""
        if not self._has_boundaries:
            return fun(*args, **kwargs)
        if self.data_numbers is not None and not self.scope:
            args = tuple(map(self.data_numbers.in_call, args))
            kwargs = {name: self.data_numbers.in_call(arg) for name, arg in kwargs.items()}
        self._calls += 1
        if self.composites and key in self.composites:
            self._composite_calls += 1
            result = composite_call(self, fun, key, args, kwargs)
            self.found = None
            return result
        result, self.found = self._result_and_template(fun, key, args, kwargs)
        return result

    def _result_and_template(
        self, fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Template | None]:
        self.leaks.check_arguments((*args, *kwargs.values()), self.arguments.known)
        forms, rows = self.arguments.describe(key, args, kwargs)
        if self.leaks.hidden:
            self.leaks.check_rows(rows)
        found = self._templates.get(forms)
        if found is None:
            self._looked_up += 1
            template = self.known.find(forms)
            if template is None:
                return self._new_call(fun, key, args, kwargs, forms, rows), None
            found = self._templates[forms] = template, tuple(template)
        return replay(self, found[1], rows, args, kwargs), found[0]

    def _new_call(
        self, fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any],
        forms: tuple[Hashable, ...], rows: list[Any],
    ) -> Any:  # fmt: skip
        """Record a call without a template: its body runs."""
        function = self.known.function(fun)
        if function.is_composite:
            self.composites.add(key)
        if function.is_composite_on(forms):
            return composite_call(self, fun, key, args, kwargs)
        template, result = record_and_remember(self, function, fun, key, args, kwargs, forms)
        return result if template is None else replay(self, template, rows, args, kwargs)

    def alias(self, leaf: Any) -> Any:
        """An alias for a leaf of a body's arguments. It has its own row id, which distinguishes arguments from
        closed-over values."""
        if type(leaf) is not Value:
            return self.as_value(leaf)
        row = self.rows.row(leaf)
        alias = Value(self, leaf.aval, leaf.aval_id, leaf, row, leaf.form)
        if row is not None:
            alias.row = self.builder.bare_row()
            self.builder.same[alias.row] = row
        return alias


compiled_calls.bind(Recorder)
