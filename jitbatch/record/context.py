"""Graphs by structure: only the first sample of each structure is recorded."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Tables
from jitbatch.record.arguments import Arguments
from jitbatch.record.finalise import Recording, number
from jitbatch.record.known_calls import KnownCalls
from jitbatch.record.known_structures import KnownStructures, graph_part
from jitbatch.record.nodes import build
from jitbatch.record.noted_call import call_noted, check_unchanged, note_wrong_arguments, without_collections
from jitbatch.record.recorder import Recorder
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure, aval_of, described_leaves
from jitbatch.util import compat, passes
from jitbatch.util.budget import Budget, BudgetCache
from jitbatch.util.caches import Cache
from jitbatch.util.key_order import Orders
from jitbatch.util.sites import describe_function

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch, ReadSamples

FIRST_STRUCTURES, MAX_STRUCTURES = 4096, 16384
"""The number of cached graphs for each function and kind of shared arguments: at first, and after a dropped graph was
needed again. A graph of 40 nodes takes about 10 kB, with its structure and its typed form."""

MAX_BYTES = 256 * 2**20
"""The limit in bytes for the cached graphs of one function, for all kinds of shared arguments together."""

FIRST_KINDS, MAX_KINDS = 1024, 8192
"""The number of node kinds in one context. A context with more is dropped, and recording starts again. The limit is
`FIRST_KINDS` at first, and `MAX_KINDS` once the same kinds come again. `MAX_KINDS` also limits shared values and value
classes."""

MAX_FORMS = 65536
"""The number of forms of arguments in one context. A context with more is dropped."""

MAX_SIGNATURES = 4096
"""The number of cached decorated calls, by the structure of their arguments, for each function and kind of shared
arguments."""

MAX_PROGRAMS = 1024
"""The number of cached programs of single samples for each function and kind of shared arguments. One may take 1.4
MiB."""

MAX_ROOMS = 64
"""The number of batch sizes (samples and shards) whose plan sizes are cached, for each function and kind of shared
arguments."""

MAX_ORDERS = 4
"""The number of contexts for further orders of keys in shared arguments: those of the user, and the sorted order of
JAX."""


class Begun(NamedTuple):
    """The arguments of a sample's function during recording.

    Attributes:
        args, kwargs: all arguments.
        shared_objects, shared_leaves: the shared arguments, and the array leaves of each.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    shared_objects: tuple[Any, ...]
    shared_leaves: list[list[Any]]

    def check(self, recorder: Recorder, result: Any) -> None:
        """Raise an error if shared arguments have changed, or if the result contains hidden values."""
        check_unchanged(self.shared_objects, self.shared_leaves, recorder.sample)
        recorder.leaks.check(jax.tree.leaves(result))


class Context:
    """The graphs, tables and caches of one function, for one kind of shared arguments and one setting of JAX.

    Samples are recorded for each order of keys in the shared arguments, since the function may iterate over them. All
    orders share the tables. If the order makes no difference, the recordings are the same program.

    Attributes:
        first: the context of the first order.
        orders: the order of keys in the shared arguments.
        others: at the first context, the contexts of other orders.
        known_recording: returns the recording of a structure if it exists elsewhere (see `rollout/walks`), else None.
        chooser: the choice of strategies (see `plan/strategy`), after the first plan.
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
        self.structures = KnownStructures(MAX_STRUCTURES if self._remembers else 0, FIRST_STRUCTURES, self._budget)
        self.known = KnownCalls(MAX_SIGNATURES) if first is None else first.known
        self.programs = Cache(MAX_PROGRAMS)
        earlier = before or first
        self.rooms = Cache(MAX_ROOMS) if first is None else first.rooms
        self.known_outputs = Cache(2) if earlier is None else earlier.known_outputs
        self.last_static: Any = None
        self.chooser: Any = None
        self.may_close_over_tracers = may_close_over_tracers
        self._avals: dict[Hashable, tuple[Any, int]] = {}

    def in_order(self, orders: Orders) -> "Context":
        """The context for shared arguments with this order of keys."""
        if orders == self.orders:
            return self
        return self.others.get_or_make(
            orders, lambda: Context(self.fun, self.granularity, orders, first=self, budget=self._budget)
        )

    @property
    def is_full(self) -> bool:
        """Whether the context has reached a limit, so that recording starts again in a new one."""
        tables = self.tables
        many = len(tables.kinds) > self._room_for_kinds and not self._found_more_room()
        many = many or any(len(t) > MAX_KINDS for t in (tables.shared, tables.classes, tables.avals))
        many = many or len(tables.forms) > MAX_FORMS
        return many or max(len(tables.outlines), len(tables.out_trees)) > MAX_STRUCTURES

    def _found_more_room(self) -> bool:
        """Raise the limit of kinds if most cells also were in earlier contexts, and so come again. Returns whether
        there is room now."""
        cells = self.cells
        if len(self.tables.kinds) <= MAX_KINDS and 2 * len(cells & self._cells_before) > len(cells):
            self._room_for_kinds = MAX_KINDS
        return len(self.tables.kinds) <= self._room_for_kinds

    @property
    def cells(self) -> frozenset[str]:
        """The digests of all recorded cells."""
        return frozenset(kind.cell.digest for kind in self.tables.kinds.entries)

    def take_apart(self, samples: Sequence[tuple[Any, ...]], names: Sequence[str]) -> list[Structure]:
        """The structures of samples."""
        return [Structure(sample, index, names) for index, sample in enumerate(samples)]

    def graphs_read(
        self, read: "ReadSamples", sample: Callable[[int], tuple[Any, ...]], shared: SharedArguments,
        arguments: Arguments,
    ) -> "tuple[Sequence[Graph], KnownBatch | None]":  # fmt: skip
        """The graphs of samples that the core has read. Samples with new structures are recorded.

        Args:
            read: the samples.
            sample: returns the sample with an index.
            shared, arguments: the arguments of their call.

        Returns:
            The graphs, and the samples in the core, or None if it cannot use one of them.
        """
        found = self.structures.find(read)
        if found is not None:
            self.graphs.count(len(found))
            return found.graphs(), found
        encodings = read.encodings()
        graphs: dict[bytes, Graph] = {}
        new: dict[bytes, int] = {}
        for index, (encoding, known) in enumerate(zip(encodings, self.structures.get_all(encodings), strict=True)):
            if known is None:
                new.setdefault(encoding, index)
            else:
                graphs[encoding] = known.graph
        self.graphs.count(len(encodings) - len(new))
        names = [part.name for part in arguments.mapped]
        structures = {index: Structure(sample(index), index, names) for index in new.values()}
        recorded = self._record_new(structures, shared, arguments)
        for encoding, index in new.items():
            graphs[encoding] = recorded[index]
            self.structures.remember(structures[index], recorded[index])
        return [graphs[encoding] for encoding in encodings], self.structures.find(read)

    def graphs_of(self, structures: Sequence[Structure], shared: SharedArguments, arguments: Arguments) -> list[Graph]:
        """The graphs of samples. Samples with new structures are recorded.

        Args:
            structures: the samples.
            shared, arguments: the arguments of their call.
        """
        graphs = self._record_new(dict(enumerate(structures)), shared, arguments)
        return [graphs[index] for index in range(len(structures))]

    def _record_new(
        self, structures: Mapping[int, Structure], shared: SharedArguments, arguments: Arguments
    ) -> dict[int, Graph]:
        """The graphs of samples, by index. The key of a sample with a known graph is hashed once."""
        found: dict[int, Graph] = {}
        new: dict[int, Hashable] = {}
        graphs: dict[Hashable, Graph] = {}
        recordings: dict[Hashable, Recording] = {}
        with without_collections():
            try:
                for index, structure in structures.items():
                    key = structure.key
                    if recordings and key in recordings:
                        self.graphs.count(1)
                        new[index] = key
                        continue
                    graph = self.graphs.get(key)
                    if graph is None:
                        recordings[key] = self._record(structure, index, shared, arguments)
                        new[index] = key
                    else:
                        found[index] = graph
            finally:  # the recordings before a failing sample are kept
                if recordings:
                    graphs = self._finalise(list(recordings.values()))
                    recordings.clear()
        return found | {index: graphs[key] for index, key in new.items()}

    def graph(self, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments) -> Graph:
        """The graph of a sample. A sample with a new structure is recorded."""
        (graph,) = self.graphs_of([structure], shared, arguments)
        return graph

    def _finalise(self, recordings: Sequence[Recording]) -> dict[Hashable, Graph]:
        """The graphs of recordings, by structure. The graphs are added to the cache."""
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
        """A recorder for a sample. `name` appears in errors, and the code `outermost` calls the sample's function."""
        return Recorder(self.tables, self.known, self.granularity, outermost, name, self.may_close_over_tracers)

    def begin(self, recorder: Recorder, structure: Structure, shared: SharedArguments, arguments: Arguments) -> "Begun":
        """The arguments of a sample's function, with abstract values in place of all arrays."""
        inputs = recorder.inputs(self._avals_of(described_leaves(structure.key), structure.leaves))
        shared_values = recorder.shared_inputs(self._avals_of(shared.described, shared.leaves))
        with compat.set_current_trace(recorder):  # so that the variables of Flax belong to this trace
            shared_objects = shared.rebuild(shared_values)
        shared_leaves = shared.split(shared_values)
        if not shared.key[1]:  # without static values, a form depends only on trees and leaves
            for part, tree, leaves in zip(shared_objects, shared.trees, shared_leaves, strict=True):
                recorder.arguments.remember_shared_argument(part, tree, leaves)
        args, kwargs = arguments.rebuild(shared_objects, structure.key[0].unflatten(inputs))
        return Begun(args, kwargs, shared_objects, shared_leaves)

    def _avals_of(self, descriptions: Iterable[Hashable], leaves: Sequence[Any]) -> list[tuple[Any, int]]:
        """The aval of each leaf, with its id. Leaves with equal descriptions share one aval."""
        avals = self._avals if self._remembers else {}
        descriptions = list(descriptions)
        for description, leaf in zip(descriptions, leaves, strict=True):
            if description not in avals:
                aval = aval_of(leaf)
                avals[description] = aval, self.tables.avals.number(aval)
        return list(map(avals.__getitem__, descriptions))
