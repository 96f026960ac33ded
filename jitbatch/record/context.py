"""Structures and their graphs: a sample of a structure that was seen before is not recorded again."""

import copy
import gc
import itertools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jitbatch.ir.cell import Identity
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Tables
from jitbatch.record.arguments import Arguments, swapped
from jitbatch.record.finalise import Recording, number
from jitbatch.record.mutation import changed_argument, flax_mutation, is_flax_mutation
from jitbatch.record.nodes import build
from jitbatch.record.recorder import Recorder
from jitbatch.record.structure import (
    Structure,
    aval_of,
    cannot_change,
    describe_leaf,
    described_leaves,
    identities,
    identity,
)
from jitbatch.record.templates import Known
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache
from jitbatch.util.errors import ArgumentError, JitbatchError
from jitbatch.util.key_order import Orders, orders_of, structure, with_orders
from jitbatch.util.sites import describe_function
from jitbatch.util.static import bits_key, flatten_with_statics
from jitbatch.util.tracebacks import users_part

FIRST_STRUCTURES, MAX_STRUCTURES = 4096, 16384
"""Graphs remembered for each function and kind of shared arguments, before and after one came again that was forgotten;
a graph takes a few kB."""

MAX_SAMPLES = 65536
"""Samples that cannot change, remembered in the same way: as many as graphs at first; one takes about 1 kB."""

FIRST_KINDS, MAX_KINDS = 1024, 8192
"""Node kinds (shared values, value classes: as at last) in one context; past that it is dropped and recording starts
anew, with more room if the same kinds come again."""

MAX_FORMS = 65536
"""Forms of arguments in one context; the same past that."""

MAX_SIGNATURES = 4096
"""Decorated calls with arguments of one structure, remembered for each function and kind of shared arguments."""

MAX_PROGRAMS = 1024
"""Programs of single samples remembered for each function and kind of shared arguments; one may take 1.4 MiB."""

MAX_ROOMS = 64
"""Numbers of samples, and of shards, for which a function and kind of shared arguments remember the sizes of plans."""

MAX_ORDERS = 4
"""Further orders of keys in shared arguments for which samples are recorded: the user's own, and as JAX sorts them."""


class SharedArguments:
    """The shared arguments of a call: their array leaves, and everything else as a key.

    Functions and other leaves that are not arrays (the activation in an Equinox module) belong to the key. The order of
    keys in dicts does not: it matters to what is recorded, but a program finds its leaves whatever their order.
    """

    def __init__(self, shared: tuple[Any, ...]):
        leaves, treedef, statics = flatten_with_statics(shared)
        described = [describe_leaf(leaf) for leaf in leaves]
        fixed = tuple(None if d is not None else _fixed_key(leaf) for d, leaf in zip(described, leaves, strict=True))
        self.leaves = [leaf for leaf, d in zip(leaves, described, strict=True) if d is not None]
        self.described = [d for d in described if d is not None]
        self.key = (treedef, statics, tuple(described), fixed)
        self.part_types = list(map(type, shared))
        self._all = leaves
        self._treedef = treedef
        self._shared: tuple[Any, ...] | None = shared

    def in_order(self, orders: Orders) -> "SharedArguments":
        """The same with keys in another order."""
        other = copy.copy(self)
        vars(other).pop("trees", None)
        other.orders = orders
        return other

    @cached_property
    def orders(self) -> Orders:
        """The order of keys in dicts (see `util/key_order`)."""
        return orders_of(self._shared, self._treedef)

    @cached_property
    def trees(self) -> Sequence[Any]:
        """The tree of each argument."""
        return list(map(structure, self.rebuild(self.leaves))) if self.orders else self._treedef.children()

    def rebuild(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        remaining = iter(arrays)
        fixed = self.key[3]
        leaves = [next(remaining) if f is None else leaf for f, leaf in zip(fixed, self._all, strict=True)]
        return with_orders(self._treedef, self.orders).unflatten(leaves)

    def without_values(self) -> "SharedArguments":
        """The same, of which only structure, shapes and dtypes are known."""
        abstract = self.in_order(self.orders)
        abstract._shared = None
        avals = map(aval_of, self.leaves)
        abstract.leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
        remaining = iter(abstract.leaves)
        abstract._all = [next(remaining) if f is None else leaf for f, leaf in zip(self.key[3], self._all, strict=True)]
        return abstract

    def check_data(self, call: Arguments) -> None:
        """Refuse shapes and dtypes in place of arrays, where something is computed with them."""
        if jax.ShapeDtypeStruct not in map(type, self.leaves):
            return
        names = shared_names(self.key, call)
        name = next(n for n, leaf in zip(names, self.leaves, strict=True) if isinstance(leaf, jax.ShapeDtypeStruct))
        raise ArgumentError(
            f"the shared argument {name} is a jax.ShapeDtypeStruct, which has no data: `.plan` and `.explain` take it "
            "in place of an array, but nothing can be computed with it. Give the array"
        )

    def split(self, arrays: Sequence[Any]) -> list[list[Any]]:
        """The array leaves of each argument."""
        remaining, values = iter(self.key[3]), iter(arrays)
        counts = [part.num_leaves for part in self._treedef.children()]
        return [[next(values) for fixed in itertools.islice(remaining, count) if fixed is None] for count in counts]


def shared_names(key: Any, call: Arguments) -> list[str]:
    """What the array leaves of shared arguments with this key are called: `params['w']`."""
    treedef, _, described, _ = key
    arguments = [part.name for part in call.parts if part.axis is None]
    try:
        paths = jax.tree_util.tree_flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))[0]
        names = [arguments[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths]
    except Exception:  # a class of the user's that cannot be made of numbers
        names = [f"leaf {number}" for number in range(treedef.num_leaves)]
    return [name for name, one in zip(names, described, strict=True) if one is not None]


def shared_difference(planned: Any, given: Any, call: Arguments) -> str:
    """How the keys of two shared arguments differ."""
    if planned[0] != given[0]:
        return "their trees differ" + _tree_difference(planned, given, call)
    names = iter(shared_names(planned, call))
    for was, now in zip(planned[2], given[2], strict=True):
        name = next(names, "a leaf") if was is not None else "a leaf"
        if was != now:
            return f"{name} was {_leaf_text(was)}, is {_leaf_text(now)}"
    return "their static values differ"


def _tree_difference(planned: Any, given: Any, call: Arguments) -> str:
    was, now = (set(shared_names(key, call)) for key in (planned, given))
    missing, further = sorted(was - now), sorted(now - was)
    told = [f"{', '.join(missing[:3])} is missing"] if missing else []
    told += [f"{', '.join(further[:3])} is new"] if further else []
    return f" ({'; '.join(told)})" if told else ""


def _leaf_text(described: Any) -> str:
    if described is None:
        return "not an array"
    if isinstance(described, type):
        return f"a Python {described.__name__}"
    shape, dtype, weak = described
    return f"{dtype}{list(shape)}{', weakly typed as Python numbers are' if weak else ''}"


def _fixed_key(leaf: Any) -> Hashable:
    try:
        key = bits_key(leaf)
        hash(key)
        return key
    except TypeError:
        return Identity(leaf)


@contextmanager
def without_collections() -> Iterator[None]:
    """Without Python's garbage collector, for a moment. A recording lets go of what it made when it ends; a collection
    in its midst finds everything alive, and keeps it for the next one. That took a third of the time of recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Context:
    """What is known of one function with one kind of shared arguments under one setting of JAX.

    Samples are recorded for each order of keys in the shared arguments, since the function may iterate over them. What
    it recorded is in terms of the same tables: if the order makes no difference, it is the same program.

    Attributes:
        first: the context for the order that was met first.
        orders: the order of keys in the shared arguments.
        others: at the first, the contexts for other orders.
    """

    def __init__(
        self, fun: Callable[..., Any], granularity: str, orders: Orders = (), may_close_over_tracers: bool = False,
        before: "Context | None" = None, first: "Context | None" = None,
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
        self.graphs = Cache(MAX_STRUCTURES, FIRST_STRUCTURES)
        self.samples = Cache(MAX_SAMPLES, FIRST_STRUCTURES)
        self.known = Known(MAX_SIGNATURES) if first is None else first.known
        self.programs = Cache(MAX_PROGRAMS)
        earlier = before or first
        self.rooms = Cache(MAX_ROOMS) if first is None else first.rooms
        self.known_outputs = Cache(2) if earlier is None else earlier.known_outputs
        self.may_close_over_tracers = may_close_over_tracers
        self._avals: dict[Hashable, tuple[Any, int]] = {}

    def in_order(self, orders: Orders) -> "Context":
        """The context for shared arguments with their keys in this order."""
        if orders == self.orders:
            return self
        return self.others.get_or_make(orders, lambda: Context(self.fun, self.granularity, orders, first=self))

    @property
    def is_full(self) -> bool:
        """Whether recording is to start anew."""
        tables = self.tables
        many = len(tables.kinds) > self._room_for_kinds and not self._found_more_room()
        many = many or any(len(t) > MAX_KINDS for t in (tables.shared, tables.classes, tables.avals))
        many = many or len(tables.forms) > MAX_FORMS
        return many or len(tables.outlines) > MAX_STRUCTURES

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
            one if one is not None and one.is_current() else Structure(sample, index, names)
            for index, (sample, one) in enumerate(zip(samples, known, strict=True))
        ]

    def graphs_of(self, structures: Sequence[Structure], shared: SharedArguments, arguments: Arguments) -> list[Graph]:
        """The graphs of samples, recorded where their structures are new."""
        graphs: list[Any] = [None if one.recorded is None else one.recorded[0] for one in structures]
        self.graphs.count(len(graphs) - graphs.count(None))
        missing = [place for place, graph in enumerate(graphs) if graph is None]
        new: dict[Any, Recording] = {}
        made: dict[Any, Graph] = {}
        with without_collections():
            try:
                for place in missing:
                    key = structures[place].key
                    if key in new:
                        self.graphs.count(1)
                        continue
                    graphs[place] = self.graphs.get(key)
                    if graphs[place] is None:
                        new[key] = self._record(structures[place], place, shared, arguments)
            finally:  # what was recorded before a sample that fails is kept
                if new:
                    made = self._numbered(list(new.values()))
                    new.clear()
        for place in missing:
            if graphs[place] is None:
                graphs[place] = made[structures[place].key]
            self._remember(structures[place], graphs[place])
        return graphs

    def graph(self, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments) -> Graph:
        """The graph of a sample, recorded if its structure is new."""
        (graph,) = self.graphs_of([structure], shared, arguments)
        return graph

    def _numbered(self, recordings: Sequence[Recording]) -> dict[Any, Graph]:
        """The graphs of new structures, which are kept."""
        graphs = number(recordings, self.tables)
        if passes.verifies():
            for graph in graphs:
                graph.verify()
        return {graph.structure: self.graphs.put(graph.structure, graph) for graph in graphs}

    def _remember(self, structure: Structure, graph: Graph) -> None:
        """Keep a sample with its graph, if it cannot change."""
        if cannot_change(structure.sample):
            structure.key = graph.structure  # equal, and one object for all samples
            structure.recorded = graph, graph.input_rows.packed(structure.leaves)
            self.samples.discard(identity(structure.sample))
            self.samples.put(identity(structure.sample), structure, structure.mark)

    def _record(self, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments) -> Recording:
        name = f"sample {index} of {self._name}"
        recorder = Recorder(
            self.tables, self.known, self.granularity, Context._record.__code__, name, self.may_close_over_tracers
        )
        try:
            inputs = recorder.inputs(self._avals_of(described_leaves(structure.key), structure.leaves))
            shared_values = recorder.shared_inputs(self._avals_of(shared.described, shared.leaves))
            with compat.set_current_trace(recorder):  # which variables of Flax belong to then
                shared_objects = shared.rebuild(shared_values)
            shared_leaves = shared.split(shared_values)
            if not shared.key[1]:  # without static values a form is a matter of trees and leaves
                for part, tree, leaves in zip(shared_objects, shared.trees, shared_leaves, strict=True):
                    recorder.passed.know_shared(part, tree, leaves)
            args, kwargs = arguments.rebuild(shared_objects, structure.key[0].unflatten(inputs))
            try:
                with compat.set_current_trace(recorder):
                    result = call_noted(self.fun, args, kwargs, shared_objects, name)
                    check_unchanged(shared_objects, shared_leaves, name)
                    recorder.check_seen(jax.tree.leaves(result))
            except TypeError as error:
                _note_wrong_arguments(error, structure, index, arguments)
                raise
            finally:
                recorder.invalidate()
            recorder.passed.check_unchanged()
            return build(recorder, result, structure.key)
        finally:
            recorder.release()

    def _avals_of(self, described: Iterable[Hashable], leaves: Sequence[Any]) -> list[tuple[Any, int]]:
        """The avals of leaves that are described so, and their numbers."""
        described = list(described)
        found: list[Any] = list(map(self._avals.get, described))
        while None in found:
            place = found.index(None)
            aval = aval_of(leaves[place])
            self._avals[described[place]] = aval, self.tables.avals.number(aval)
            found = list(map(self._avals.get, described))
        return found


def _note_wrong_arguments(error: TypeError, structure: Structure, index: int, arguments: Arguments) -> None:
    """Note what may be the matter with the arguments, if it can be told from the error that they lead to."""
    if isinstance(error, JitbatchError):
        return
    if "Indexer must have integer" in str(error):
        leaves = jax.tree_util.tree_flatten_with_path(structure.sample)[0]
        for path, leaf in [one for one in leaves if isinstance(one[1], float | np.floating)][:1]:
            place = f"{arguments.mapped[path[0].idx].name}[{index}]{jax.tree_util.keystr(path[1:])}"
            error.add_note(f"jitbatch: {place} is the float {leaf!r}; an index, such as that of a word, is an integer")
    if told := swapped(arguments):
        error.add_note(f"jitbatch: {told}")


def call_noted(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shared: Sequence[Any], name: str
) -> Any:
    """The result of a function for the sample that is recorded. Errors name it."""
    try:
        return fun(*args, **kwargs)
    except JitbatchError as error:
        error.__traceback__ = users_part(error.__traceback__)
        raise
    except Exception as error:
        if is_flax_mutation(error):
            raise flax_mutation(error, shared, name) from error
        error.add_note(f"jitbatch: raised while {name} was recorded")
        if _is_too_deep(error):
            error.add_note(
                f"jitbatch: the recursion is too deep for Python's limit of {sys.getrecursionlimit()} calls, of which "
                "a decorated function takes several for each level. Raise it with `sys.setrecursionlimit`"
            )
        if "'Static'" in str(error):
            error.add_note("jitbatch: what is wrapped in a Static is its `.value`")
        if "PartitionSpec" in str(error) and jax.sharding.get_abstract_mesh().empty:
            error.add_note(
                "jitbatch: a sample is recorded without a mesh, and a batch runs with automatic axes: XLA decides how "
                "its values are sharded. Give a `jax.NamedSharding(mesh, spec)` in place of the PartitionSpec, which "
                "the plain function follows and a batch ignores, or leave it out"
            )
        error.__traceback__ = users_part(error.__traceback__)
        raise


def array_leaves(part: Any, count: int) -> list[Any]:
    """The array leaves of a shared argument, of which there were so many."""
    leaves = jax.tree.leaves(part)
    return leaves if len(leaves) == count else [leaf for leaf in leaves if describe_leaf(leaf) is not None]


def check_unchanged(shared: Sequence[Any], leaves: Sequence[Sequence[Any]], name: str) -> None:
    """Raise if shared arguments do not hold these array leaves any more."""
    for part, before in zip(shared, leaves, strict=True):
        if list(map(id, array_leaves(part, len(before)))) != list(map(id, before)):
            raise changed_argument(part, before, name)


def _is_too_deep(error: BaseException | None) -> bool:
    """Whether an error is, or was caused by, a recursion that is too deep; compiled code hides it in another one."""
    while error is not None and not isinstance(error, RecursionError):
        error = error.__cause__ or error.__context__
    return error is not None
