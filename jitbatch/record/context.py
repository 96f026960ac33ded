"""Graphs by structure: a sample of a structure that was seen before is not recorded again."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import jax

from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Tables
from jitbatch.record.arguments import Arguments
from jitbatch.record.finalise import Recording, number
from jitbatch.record.known_calls import KnownCalls
from jitbatch.record.known_samples import KnownSamples, graph_part
from jitbatch.record.nodes import build
from jitbatch.record.noted_call import call_noted, check_unchanged, note_wrong_arguments, without_collections
from jitbatch.record.recorder import Recorder
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure, aval_of, described_leaves, identities
from jitbatch.util import compat, passes
from jitbatch.util.budget import Budget, BudgetCache
from jitbatch.util.caches import Cache
from jitbatch.util.key_order import Orders
from jitbatch.util.sites import describe_function

FIRST_STRUCTURES, MAX_STRUCTURES = 4096, 16384
"""Graphs remembered for each function and kind of shared arguments, before and after one came again that was forgotten;
a graph of 40 nodes takes about 10 kB, with its structure and in terms of types."""

MAX_SAMPLES = 65536
"""Samples that cannot change, remembered in the same way: as many as graphs at first; one takes about 2 kB."""

MAX_BYTES = 256 * 2**20
"""The bytes that graphs and samples remembered for one function may take, of all kinds of shared arguments together."""

FIRST_KINDS, MAX_KINDS = 1024, 8192
"""Node kinds in one context. A context with more is dropped, and recording starts anew: with `FIRST_KINDS` first, with
`MAX_KINDS` once the same kinds come again. Shared values and value classes are limited to `MAX_KINDS`."""

MAX_FORMS = 65536
"""Forms of arguments in one context, which is dropped past that."""

MAX_SIGNATURES = 4096
"""Decorated calls with arguments of one structure, remembered for each function and kind of shared arguments."""

MAX_PROGRAMS = 1024
"""Programs of single samples remembered for each function and kind of shared arguments; one may take 1.4 MiB."""

MAX_ROOMS = 64
"""Numbers of samples, and of shards, for which a function and kind of shared arguments remember the sizes of plans."""

MAX_ORDERS = 4
"""Further orders of keys in shared arguments for which samples are recorded: the user's own, and as JAX sorts them."""


class Begun(NamedTuple):
    """What the function of a sample that is recorded is called with.

    Attributes:
        args, kwargs: its arguments.
        shared_objects, shared_leaves: the shared ones, and the array leaves of each.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    shared_objects: tuple[Any, ...]
    shared_leaves: list[list[Any]]

    def check(self, recorder: Recorder, result: Any) -> None:
        """Raise for shared arguments that were changed, and for results that must not be used."""
        check_unchanged(self.shared_objects, self.shared_leaves, recorder.sample)
        recorder.leaks.check(jax.tree.leaves(result))


class Context:
    """The graphs, tables and caches of one function with one kind of shared arguments under one setting of JAX.

    Samples are recorded for each order of keys in the shared arguments, since the function may iterate over them. All
    orders have the same tables: if the order makes no difference, the recordings are the same program.

    Attributes:
        first: the context for the order that was met first.
        orders: the order of keys in the shared arguments.
        others: at the first, the contexts for other orders.
        known_recording: returns the recording of a structure if it was made elsewhere (see `rollout/walks`), else None.
        last_static: the static part of the last plan, whose output is among `known_outputs`.
    """

    known_recording: Callable[[Structure], Recording | None] | None = None

    def __init__(
        self, fun: Callable[..., Any], granularity: str, orders: Orders = (), may_close_over_tracers: bool = False,
        before: "Context | None" = None, first: "Context | None" = None, budget: Budget | None = None,
    ):  # fmt: skip
        self.fun = fun
        self._name = describe_function(fun)
        self.granularity = granularity
        self.orders = orders
        self.first = first or self
        self.others = Cache(MAX_ORDERS)
        self.tables = Tables(granularity) if first is None else first.tables
        self._cells_before: frozenset[str] = frozenset()
        if before is not None:
            every = before._cells_before | before.cells
            self._cells_before = every if len(every) <= MAX_KINDS else before.cells
        self._room_for_kinds = min(FIRST_KINDS, MAX_KINDS)
        self._remembers = passes.remembers()
        self._budget = budget or Budget(MAX_BYTES)
        self.graphs = BudgetCache(
            MAX_STRUCTURES if self._remembers else 0, FIRST_STRUCTURES, self._budget, lambda graph: [graph_part(graph)]
        )
        self.samples = KnownSamples(MAX_SAMPLES if self._remembers else 0, FIRST_STRUCTURES, self._budget)
        self.known = KnownCalls(MAX_SIGNATURES) if first is None else first.known
        self.programs = Cache(MAX_PROGRAMS)
        earlier = before or first
        self.rooms = Cache(MAX_ROOMS) if first is None else first.rooms
        self.known_outputs = Cache(2) if earlier is None else earlier.known_outputs
        self.last_static: Any = None
        self.may_close_over_tracers = may_close_over_tracers
        self._avals: dict[Hashable, tuple[Any, int]] = {}

    def in_order(self, orders: Orders) -> "Context":
        """The context for shared arguments with their keys in this order."""
        if orders == self.orders:
            return self
        return self.others.get_or_make(
            orders, lambda: Context(self.fun, self.granularity, orders, first=self, budget=self._budget)
        )

    @property
    def is_full(self) -> bool:
        """Whether recording is to start anew."""
        tables = self.tables
        many = len(tables.kinds) > self._room_for_kinds and not self._found_more_room()
        many = many or any(len(t) > MAX_KINDS for t in (tables.shared, tables.classes, tables.avals))
        many = many or len(tables.forms) > MAX_FORMS
        return many or max(len(tables.outlines), len(tables.out_trees)) > MAX_STRUCTURES

    def _found_more_room(self) -> bool:
        """Whether there is room for more kinds after all: most cells were there before, and so come again."""
        cells = self.cells
        if len(self.tables.kinds) <= MAX_KINDS and 2 * len(cells & self._cells_before) > len(cells):
            self._room_for_kinds = MAX_KINDS
        return len(self.tables.kinds) <= self._room_for_kinds

    @property
    def cells(self) -> frozenset[str]:
        """The digests of all cells that were met."""
        return frozenset(kind.cell.digest for kind in self.tables.kinds.entries)

    def take_apart(self, samples: Sequence[tuple[Any, ...]], names: Sequence[str]) -> list[Structure]:
        """The structures of samples. One that cannot change is taken apart once."""
        known = self.samples.get_all(identities(samples))
        return [
            structure
            if structure is not None and (not structure.arrays or structure.is_current())
            else Structure(sample, index, names)
            for index, (sample, structure) in enumerate(zip(samples, known, strict=True))
        ]

    def graphs_of(
        self, structures: Sequence[Structure], shared: SharedArguments, arguments: Arguments, keeps: bool = True
    ) -> list[Graph]:
        """The graphs of samples, recorded where their structures are new.

        Args:
            structures: the samples.
            shared, arguments: of their call.
            keeps: remember samples that cannot change, since they may come again.
        """
        graphs: list[Any] = [
            None if structure.recorded is None else structure.recorded[0] for structure in structures
        ]  # fmt: skip
        self.graphs.count(len(graphs) - graphs.count(None))
        missing = [index for index, graph in enumerate(graphs) if graph is None]
        new_graphs = self._record_new(structures, missing, shared, arguments) if missing else {}
        for index, graph in new_graphs.items():
            graphs[index] = graph
            if keeps and self._remembers:
                self.samples.remember(structures[index], graph)
        return graphs

    def _record_new(
        self, structures: Sequence[Structure], missing: Sequence[int], shared: SharedArguments, arguments: Arguments
    ) -> dict[int, Graph]:
        """The graphs of the samples with these indices. A key is hashed once, where its graph is known."""
        found: dict[int, Graph] = {}
        new: dict[int, Hashable] = {}
        graphs: dict[Hashable, Graph] = {}
        recordings: dict[Hashable, Recording] = {}
        with without_collections():
            try:
                for index in missing:
                    key = structures[index].key
                    if recordings and key in recordings:
                        self.graphs.count(1)
                        new[index] = key
                        continue
                    graph = self.graphs.get(key)
                    if graph is None:
                        recordings[key] = self._record(structures[index], index, shared, arguments)
                        new[index] = key
                    else:
                        found[index] = graph
            finally:  # what was recorded before a sample that fails is kept
                if recordings:
                    graphs = self._finalise(list(recordings.values()))
                    recordings.clear()
        return found | {index: graphs[key] for index, key in new.items()}

    def graph(self, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments) -> Graph:
        """The graph of a sample, recorded if its structure is new."""
        (graph,) = self.graphs_of([structure], shared, arguments)
        return graph

    def _finalise(self, recordings: Sequence[Recording]) -> dict[Hashable, Graph]:
        """The graphs of recordings, which are kept, by structure."""
        graphs = number(recordings, self.tables)
        if passes.verifies():
            for graph in graphs:
                graph.verify()
        return {graph.structure: self.graphs.put(graph.structure, graph) for graph in graphs}

    def _record(self, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments) -> Recording:
        known = self.known_recording and self.known_recording(structure)
        if known is not None:
            return known
        name = f"sample {index} of {self._name}"
        recorder = self.recorder(name, Context._record.__code__)
        try:
            begun = self.begin(recorder, structure, shared, arguments)
            try:
                with compat.set_current_trace(recorder):
                    result = call_noted(self.fun, begun.args, begun.kwargs, begun.shared_objects, name)
                    begun.check(recorder, result)
            except TypeError as error:
                note_wrong_arguments(error, structure, index, arguments)
                raise
            finally:
                recorder.invalidate()
            recorder.arguments.check_unchanged()
            return build(recorder, result, structure.key)
        finally:
            recorder.release()

    def recorder(self, name: str, outermost: CodeType) -> Recorder:
        """A recorder for a sample that has this name in errors, whose function is called by the code `outermost`."""
        return Recorder(self.tables, self.known, self.granularity, outermost, name, self.may_close_over_tracers)

    def begin(self, recorder: Recorder, structure: Structure, shared: SharedArguments, arguments: Arguments) -> "Begun":
        """What a sample's function is called with: abstract values in place of all arrays."""
        inputs = recorder.inputs(self._avals_of(described_leaves(structure.key), structure.leaves))
        shared_values = recorder.shared_inputs(self._avals_of(shared.described, shared.leaves))
        with compat.set_current_trace(recorder):  # which variables of Flax belong to then
            shared_objects = shared.rebuild(shared_values)
        shared_leaves = shared.split(shared_values)
        if not shared.key[1]:  # without static values a form is a matter of trees and leaves
            for part, tree, leaves in zip(shared_objects, shared.trees, shared_leaves, strict=True):
                recorder.arguments.remember_shared_argument(part, tree, leaves)
        args, kwargs = arguments.rebuild(shared_objects, structure.key[0].unflatten(inputs))
        return Begun(args, kwargs, shared_objects, shared_leaves)

    def _avals_of(self, descriptions: Iterable[Hashable], leaves: Sequence[Any]) -> list[tuple[Any, int]]:
        """The avals of leaves, each with its id. Leaves of one description have one aval."""
        avals = self._avals if self._remembers else {}
        descriptions = list(descriptions)
        for description, leaf in zip(descriptions, leaves, strict=True):
            if description not in avals:
                aval = aval_of(leaf)
                avals[description] = aval, self.tables.avals.number(aval)
        return list(map(avals.__getitem__, descriptions))
