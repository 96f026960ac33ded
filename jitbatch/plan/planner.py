"""From a call to a plan: record the samples, choose granularity and executor, and determine the sizes."""

import copy
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.execute.executor import SizeRequest
from jitbatch.execute.per_sample import sample_program
from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.cell import Identity
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.items import common_item
from jitbatch.plan.capacity import Capacity, check_arenas, sizes_of
from jitbatch.plan.compiles import logger
from jitbatch.plan.differentiable import Names
from jitbatch.plan.eager import on_grid
from jitbatch.plan.make import Options, Planned, make_plan, refill_plan
from jitbatch.plan.outputs import describe_result, outputs_of
from jitbatch.plan.per_sample import plan_per_sample
from jitbatch.plan.plan import Plan
from jitbatch.plan.ragged import no_samples
from jitbatch.plan.rooms import Rooms
from jitbatch.plan.saved.plans import SavedStatic, attach, call_of, name_of
from jitbatch.plan.saved.values import CHANGED
from jitbatch.plan.shards import plan_shards, split, stacked
from jitbatch.plan.static import PlanStatic
from jitbatch.record import context as context_module
from jitbatch.record.arguments import Arguments, samples_of, swapped
from jitbatch.record.context import Context
from jitbatch.record.known_shared import KnownShared
from jitbatch.record.rows import ClosesOverTracer
from jitbatch.record.shared_arguments import SharedArguments, shared_difference
from jitbatch.record.structure import Structure
from jitbatch.tune.auto import Choice, Chooser, Way
from jitbatch.tune.cost import PREDICTIONS
from jitbatch.util import compat, passes
from jitbatch.util.budget import Budget
from jitbatch.util.caches import Cache, CacheInfo
from jitbatch.util.errors import ArgumentError, PlanError
from jitbatch.util.meshes import without_explicit_mesh
from jitbatch.util.sites import describe_function


class Call:
    """The arguments of a batch: shared arguments and samples."""

    def __init__(self, arguments: Arguments, shared: SharedArguments):
        self.arguments = arguments
        self.shared = shared
        self.mapped = arguments.mapped

    @property
    def is_empty(self) -> bool:
        """Whether there are no samples. Plain lists are not looked into."""
        first = self.mapped[0].value if self.mapped else None
        return not (type(first) is list and first) and not self.samples

    @cached_property
    def samples(self) -> list[Any]:
        try:
            return samples_of(self.mapped)
        except ArgumentError as error:
            told = swapped(self.arguments)
            raise ArgumentError(f"{error}; {told}" if told else str(error)) from None


class Recorded:
    """The samples of a call in a context.

    Attributes:
        known: the samples in the core, if all of them are known there; otherwise None.
        graphs: the graph of each sample, after `record`.
    """

    def __init__(self, call: Call, context: Context):
        self.call = call
        self.context = context
        self.known = context.samples.find(call.mapped)
        self.graphs: Sequence[Graph] = ()
        if self.known is None:
            self.structures = context.take_apart(call.samples, [part.name for part in call.mapped])

    def __len__(self) -> int:
        return len(self.structures) if self.known is None else len(self.known)

    @cached_property
    def structures(self) -> list[Structure]:
        """The flattened samples."""
        assert self.known is not None
        return self.known.structures()

    def record(self, keeps: bool = True) -> Sequence[Graph]:
        """Record the samples. `keeps` says whether to cache them."""
        if self.known is None:
            self.graphs = self.context.graphs_of(self.structures, self.call.shared, self.call.arguments, keeps)
        else:
            self.graphs = self.known.graphs()
            self.context.graphs.count(len(self.known))
        return self.graphs

    @property
    def nodes(self) -> int:
        """The number of nodes of all graphs."""
        return sum([len(graph.kind) for graph in self.graphs]) if self.known is None else self.known.nodes

    @property
    def arrays(self) -> Iterator[Any]:
        """The array leaves of all samples."""
        return itertools.chain.from_iterable([structure.arrays for structure in self.structures if structure.arrays])

    @property
    def is_concrete_or_differentiated_once(self) -> bool:
        """Whether all leaves are concrete, or take part only in one reverse-mode differentiation."""
        leaves = self.call.shared.leaves if self.known else itertools.chain(self.call.shared.leaves, self.arrays)
        return all(map(compat.is_in_reverse_mode_alone, filter(compat.is_tracer, leaves)))

    def some(self, chosen: Iterable[int]) -> "Recorded":
        """Returns the samples with these indices."""
        part = copy.copy(self)
        vars(part).pop("inputs", None)
        part.structures = [self.structures[i] for i in chosen]
        part.graphs = [self.graphs[i] for i in chosen]
        part.known = None
        return part

    @cached_property
    def inputs(self) -> Sequence[Inputs]:
        """The leaves of each sample that are rows of its graph."""
        return [structure.inputs_of(graph) for structure, graph in zip(self.structures, self.graphs, strict=True)]


class LastContext(NamedTuple):
    """The context of the last call, for calls that look like it: their keys are the same objects.

    Attributes:
        looks: the objects that decide which context it is.
        axes: the axes of the arguments.
        context: the context, for the order of keys that was met first.
    """

    looks: tuple[Any, ...]
    axes: tuple[int | None, ...]
    context: Context


class Planner:
    """Plans the batches of one function, and caches the recordings.

    Attributes:
        owner: the decorated function. Its plans refer to it.
        granularity, options: the arguments of the decorator.
        contexts: a cache of contexts, one for each kind of shared arguments.
    """

    def __init__(self, owner: Any, granularity: str, options: Options):
        self.owner = owner
        self.granularity = granularity
        self.options = options
        self._with_executor = {name: replace(options, executor=name) for name in EXECUTORS}
        self.contexts = Cache(16)
        self._last_context = Cache(1)
        self._known_shared = KnownShared()
        self._budget = Budget(context_module.MAX_BYTES)
        self._choosers: weakref.WeakKeyDictionary[Context, Chooser] = weakref.WeakKeyDictionary()

    def call(self, arguments: Arguments) -> Call:
        return Call(arguments, self._known_shared.of(arguments.shared))

    @without_explicit_mesh
    def plan(
        self, call: Call, like: Plan | Capacity | str | None = None, shards: int | None = None,
        rooms: Rooms | None = None, differentiable: Names = (),
    ) -> Plan:  # fmt: skip
        """Makes a plan that the caller may keep.

        Args:
            call: the arguments of the batch.
            like: the least sizes. `"auto"` uses the rooms of earlier plans; None takes the sizes of this batch.
            shards: the number of shards, or None.
            rooms: the rooms of a caller that plans repeatedly, or None.
            differentiable: the names of the inputs that are differentiated. Names that no sample has are ignored.
        """
        if call.is_empty:
            raise PlanError("there are no samples to plan")
        if not (like == "auto" or isinstance(like, Plan | Capacity | None)):
            raise ArgumentError(f'like={like!r} is not a plan, the capacity of one, "auto" or None')
        try:
            context = self._context(call.arguments, call.shared, like)
            plan = self._plan(call, context, "fused", like, shards, rooms, differentiable=differentiable)
        except ClosesOverTracer:
            raise PlanError(
                f"{self._name} cannot be planned: it uses a value of an outer JAX transformation (jax.grad, jit, vmap, "
                "...) that it closes over. A plan outlives the transformation: pass that value as a shared argument "
                "instead, or call .batch on the samples inside it"
            ) from None
        traced = [leaf for leaf in jax.tree.leaves(plan.rows) if compat.is_tracer(leaf)]
        if traced:
            raise PlanError(
                "the samples hold values of an outer JAX transformation (jax.grad, jit, vmap, ...), but a plan's "
                f"inputs are constants. {_instead_of_planning(traced)}"
            )
        return plan

    def plan_use(
        self, arguments: Arguments, shared: SharedArguments, mapped: Sequence[Any],
        rooms: Callable[[int], Rooms] | None, shards: int | None = None, like: Plan | Capacity | None = None,
        differentiable: Names = (),
    ) -> Plan:  # fmt: skip
        """Makes a plan for a step (see `step/samples`).

        Args:
            arguments: the arguments of the function; the values of mapped ones are ignored.
            shared: the shared arguments.
            mapped: the mapped arguments.
            rooms: returns the rooms for a number of samples in a shard; None for a plan with the sizes of its batch.
            shards: the number of shards, or None.
            like: without rooms, a plan or capacity with the least sizes.
            differentiable: the names of the inputs that are differentiated.
        """
        values = iter(mapped)
        parts = [part if part.axis is None else part._replace(value=next(values)) for part in arguments.parts]
        call = Call(arguments._replace(parts=parts), shared)
        found = rooms and rooms(len(call.samples) // (shards or 1))
        return self.plan(call, like, shards, found, differentiable)

    @without_explicit_mesh
    def capacity(self, call: Call, batch_size: int) -> Capacity:
        """Returns a capacity for the minibatches of a data set.

        Args:
            call: the arguments, with the whole data set as samples.
            batch_size: the number of samples in a minibatch.
        """
        if not 0 < batch_size <= len(call.samples):
            raise ArgumentError(
                f"batch_size={batch_size} is not a number of samples that a minibatch can have: there are "
                f"{len(call.samples)}"
            )
        context = self._context(call.arguments, call.shared)
        batch = Recorded(call, context)
        graphs = batch.record()
        counts = np.stack([np.bincount(graph.kind, minlength=len(context.tables.kinds)) for graph in graphs])
        # The minibatches with the most nodes, in total and of each kind; and samples spread over all, with headroom.
        columns = [counts.sum(axis=1), *counts.T[counts.any(axis=0)]]
        largest = {tuple(np.sort(np.argsort(-column, kind="stable")[:batch_size])) for column in columns}
        options = self._with_executor["fused"]
        least = SizeRequest(Sizes(), headroom_for=batch_size)
        spread = np.linspace(0, len(call.samples) - 1, batch_size).astype(int)
        plan = self._make(batch.some(spread), options, None, least)
        for chosen in sorted(largest):
            plan = self._make(batch.some(chosen), options, None, SizeRequest(plan.sizes))
        return plan.capacity

    @without_explicit_mesh
    def plan_for_once(self, call: Call) -> Plan:
        """Makes a plan to run immediately. It may hold tracers of an outer transformation."""
        try:
            return self._plan(call, self._context(call.arguments, call.shared), "fused", is_eager=True)
        except ClosesOverTracer:
            context = Context(self.owner.__wrapped__, self._granularity_like(None), may_close_over_tracers=True)
            return self._plan(call, context, "dispatch")

    # Plans for a server, which sizes and runs them itself

    def for_serving(self) -> "Planner":
        """Returns a planner with these recordings, for plans with `out="rows"` that are not differentiated.

        The cost of batches does not influence the choice of the executor.
        """
        executor = "fused" if self.options.executor == "auto" else self.options.executor
        other = Planner(
            self.owner, self.granularity, replace(self.options, out="rows", executor=executor, derives=False)
        )
        other.contexts = self.contexts
        return other

    @without_explicit_mesh
    def record(self, call: Call) -> Recorded:
        """Returns the samples of a call, which is one of requests, with their graphs. No request comes twice."""
        batch = Recorded(call, self._context(call.arguments, call.shared))
        batch.record(keeps=False)
        return batch

    def refill(self, like: Plan, batch: Recorded) -> Plan | None:
        """Plans a batch for the program of another plan, or returns None if it does not fit."""
        return self._refill(like, batch, self.options, None)

    def make(self, batch: Recorded, like: Plan | Capacity | None, headroom_for: int) -> Plan:
        """Plans a batch with at least the sizes of `like`, and headroom for batches of `headroom_for` samples."""
        least = self._least(like, batch.context, batch.call.shared, batch.call.arguments)
        return self._make(batch, self.options, None, SizeRequest(least, headroom_for))

    @without_explicit_mesh
    def ready(self, plan: Plan, shared: SharedArguments) -> Plan:
        """Returns a plan that runs with these shared arguments. Raises `PlanError` if they do not fit the plan."""
        plan = self._attached(plan, shared)
        self._check_owner(plan)
        if plan.is_sharded:
            raise PlanError(
                f"the plan has {plan.shards} shards, of which one is run at a time: `plan.shard(i)`, or "
                "`plan.shard(0)` inside jax.shard_map, where each device has its own"
            )
        static = plan.static
        if static.shared_key != shared.key:
            raise PlanError(
                f"the shared arguments differ in structure, shape or dtype from those that the plan of {self._name} "
                f"was made with: {shared_difference(static.shared_key, shared.key, static.call)}. Plan again with these"
            )
        return plan

    @without_explicit_mesh
    def results_of_no_samples(self, call: Call) -> Any:
        """Returns the result of an empty batch. Its shapes and dtypes are those of an earlier batch."""
        if self.options.out == "list":
            return []
        context = self._context(call.arguments, call.shared)
        known = list(context.known_outputs)
        if len(known) > 1:
            first, second = (describe_result(*one) for one in known[:2])
            raise ArgumentError(
                f"{self._name} was given no samples, and earlier batches do not tell what its output looks like: one "
                f'was made of {first}, one of {second}. Leave empty batches out, or use out="list"'
            )
        if not known:
            raise ArgumentError(
                f"{self._name} was given no samples, and no earlier batch tells what its output looks like. Give at "
                'least one sample first, or use out="list"'
            )
        tree, classes = known[0]
        rows = tree.unflatten([jnp.zeros((0, *c.shape), c.dtype) for c in classes])
        return no_samples(rows, context.tables.outlines) if self.options.out == "ragged" else rows

    def cache_info(self) -> dict[str, CacheInfo]:
        first = list(self.contexts)
        contexts = [*first, *(other for context in first for other in context.others)]
        return {
            "structures": _total([context.graphs.info() for context in contexts], context_module.MAX_STRUCTURES),
            "subgraphs": _total([context.known.info() for context in first], context_module.MAX_SIGNATURES),
            "programs": _total([context.programs.info() for context in contexts], context_module.MAX_PROGRAMS),
            "rooms": _total([rooms.info() for context in first for rooms in context.rooms], context_module.MAX_ROOMS),
        }

    @without_explicit_mesh
    def context_of(self, call: Call) -> Context:
        """Returns the context that the samples of a call are first recorded in."""
        return self._context(call.arguments, call.shared)

    # Helpers

    @property
    def _name(self) -> str:
        return describe_function(self.owner.__wrapped__)

    def _context(
        self, arguments: Arguments, shared: SharedArguments, like: Any = None, granularity: str | None = None
    ) -> Context:
        granularity = granularity or self._granularity_like(like)
        settings, off = compat.trace_context(), passes.switched_off()
        looks = granularity, shared.key, arguments.layout, settings, off
        last: LastContext | None = self._last_context.get(None)
        axes = arguments.axes
        is_last = last is not None and all(map(operator.is_, looks, last.looks)) and axes == last.axes
        if last is not None and is_last and not last.context.is_full:
            return last.context.in_order(shared.orders)
        key = (granularity, shared.key, arguments.layout, axes, (Identity(settings), off))
        fun, orders = self.owner.__wrapped__, shared.orders
        context = self.contexts.get_or_make(key, lambda: Context(fun, granularity, orders, budget=self._budget))
        if context.is_full:
            self.contexts.discard(key)
            for dropped in (context, *context.others):
                self._choosers.pop(dropped, None)
            new = Context(fun, granularity, orders, before=context, budget=self._budget)
            context = self.contexts.put(key, new)
        self._last_context.discard(None)
        self._last_context.put(None, LastContext(looks, axes, context))
        return context.in_order(orders)

    def _granularity_like(self, like: Plan | Capacity | str | None) -> str:
        """Returns the first granularity: the user's, or for `"auto"` that of `like`, or else `"subgraph"`."""
        if self.granularity != "auto":
            return self.granularity
        if isinstance(like, Plan):
            static: Any = like.static
            return static.granularity if isinstance(static, SavedStatic) else static.tables.granularity
        return like.granularity if isinstance(like, Capacity) else "subgraph"

    def _plan(
        self, call: Call, context: Context, auto: str, like: Plan | Capacity | str | None = None,
        shards: int | None = None, rooms: Rooms | None = None, is_eager: bool = False, differentiable: Names = (),
    ) -> Plan:  # fmt: skip
        """Plans a batch.

        Args:
            call: the arguments of the batch.
            context: the context to record the samples in.
            auto: the first executor for `executor="auto"`.
            like, shards, rooms: as for `plan`.
            is_eager: whether the plan runs immediately.
            differentiable: the names of the inputs that are differentiated.
        """
        if differentiable and self.options.executor == "per_sample":
            raise ArgumentError(
                f"differentiable={differentiable}: a plan for the per-sample executor has no differentiable inputs. "
                "Leave the executor to jitbatch, or call .batch on the samples themselves inside jax.grad"
            )
        with jax.profiler.TraceAnnotation("jitbatch.plan"):
            batch = Recorded(call, context)
            if is_eager and not batch.is_concrete_or_differentiated_once:
                auto = "dispatch"  # supports all transformations; inside `jax.jit` no program is reused anyway
            way = Way(context.granularity, auto if self.options.executor == "auto" else self.options.executor)
            if EXECUTORS[way.executor].lower is not None:
                batch.record()
            is_sized = isinstance(like, Capacity) or (
                isinstance(like, Plan) and EXECUTORS[like.static.executor].lower is not None
            )
            choice = Choice(way)
            if not is_sized and shards is None and rooms is None and not differentiable:
                choice = self._choose(batch, way)
            if choice.way.granularity != context.granularity:
                batch = Recorded(call, self._context(call.arguments, call.shared, granularity=choice.way.granularity))
                batch.record()
            if rooms is None and EXECUTORS[choice.way.executor].has_room:
                rooms = self._rooms(batch, like, shards, is_eager, differentiable)
            plan = self._sized(batch, choice, like, shards, rooms, is_eager, differentiable)
        if self.options.out != "list" and context.last_static is not plan.static:
            classes = map(batch.context.tables.classes.__getitem__, plan.static.out_classes)
            output = plan.static.out_trees[0], tuple(classes)
            context.known_outputs.put(output, output)
            context.last_static = plan.static
        logger.debug("planned %s: %r", self.owner, plan)
        return plan

    def _choose(self, batch: "Recorded", way: Way) -> Choice:
        """Chooses granularity and executor: `way`, unless the cost model predicts that another way pays."""
        call, context = batch.call, batch.context
        chooser = self._chooser(context)
        others = self._others(way, batch) if chooser.is_open else ()
        if not others:
            return Choice(way)

        def by_operations() -> Sequence[Graph]:
            return Recorded(call, self._context(call.arguments, call.shared, granularity="op")).record()

        return chooser.choose(batch.graphs, way, others, by_operations)

    def _chooser(self, context: Context) -> Chooser:
        """Returns the chooser of a context."""
        found = self._choosers.get(context)
        return self._choosers.setdefault(context, Chooser(context.graphs)) if found is None else found

    def _rooms(
        self, batch: "Recorded", like: Plan | Capacity | str | None, shards: int | None, is_eager: bool,
        differentiable: Names,
    ) -> Rooms | None:  # fmt: skip
        """Returns the rooms for an eager plan or for `like="auto"`, else None."""
        count = len(batch)
        platform = self.options.platform_for(batch.call.shared.leaves)
        if is_eager:
            is_traced = any(map(compat.is_tracer, batch.arrays))
            eager = ("eager", on_grid(count), is_traced, platform)
            return batch.context.rooms.get_or_make(eager, lambda: Rooms(headroom_at_first=True))
        return (
            batch.context.rooms.get_or_make((shards, count, differentiable, platform), Rooms)
            if like == "auto"
            else None
        )

    def _options(self, choice: Choice, differentiable: Names) -> Options:
        options = self._with_executor[choice.way.executor]
        return replace(options, differentiable=differentiable) if differentiable else options

    def _sized(
        self, batch: "Recorded", choice: Choice, like: Plan | Capacity | str | None, shards: int | None,
        rooms: Rooms | None, is_eager: bool, differentiable: Names,
    ) -> Plan:  # fmt: skip
        """Makes the plan of a batch with the sizes of its room, or with those of `like`."""
        options = self._options(choice, differentiable)
        count = len(batch)
        room_for = on_grid(count) if is_eager else count // (shards or 1)

        def make(like: Plan | Capacity | None, has_headroom: bool = False) -> Plan:
            if isinstance(like, Plan) and not has_headroom:
                plan = self._refill(like, batch, options, shards)
                if plan is not None:
                    return plan
            least = self._least(like, batch.context, batch.call.shared, batch.call.arguments)
            plan = self._make(
                batch, options, shards, SizeRequest(least, room_for if has_headroom else 0), choice.reason
            )
            if isinstance(like, Capacity):
                check_arenas(plan.static.arenas, batch.context.tables)
            return plan

        if rooms is not None:
            return rooms.plan(batch.nodes, make)
        return make(None if isinstance(like, str) else like)

    def _refill(self, like: Plan, batch: "Recorded", options: Options, shards: int | None) -> Plan | None:
        """Makes a plan for the program of `like`.

        Returns:
            The plan, or None if the batch does not fit or `like` is loaded, or of another function, context or number
            of shards.
        """
        static: Any = like.static
        is_known = isinstance(static, PlanStatic) and static.tables is batch.context.tables
        if not is_known or static.owner is not self.owner or not batch.graphs or like.is_sharded is (shards is None):
            return None
        if shards is None:
            return refill_plan(like, batch.graphs, lambda: batch.inputs, options, batch.known)
        first = like.shard(0)
        parts = split(len(batch), shards)
        plans = (
            refill_plan(first, batch.graphs[part], partial(batch.inputs.__getitem__, part), options) for part in parts
        )
        return stacked(plans)

    def _make(
        self, batch: "Recorded", options: Options, shards: int | None, request: SizeRequest, reason: str = ""
    ) -> Plan:
        call, context = batch.call, batch.context
        emptied = call.arguments.emptied(call.shared.orders)
        programs: Sequence[Any] = batch.graphs
        is_recorded = EXECUTORS[options.executor].lower is not None
        if not is_recorded:
            programs = [
                sample_program(context, structure, index, call.shared, call.arguments)
                for index, structure in enumerate(batch.structures)
            ]
        leaves = [structure.leaves for structure in batch.structures]

        planned = Planned(self.owner, call.shared.key, emptied)
        platform = options.platform_for(call.shared.leaves)
        request = replace(request, platform=platform, static_loops=options.static_loops)

        def make(part: slice, request: SizeRequest) -> Plan:
            if not is_recorded:
                return plan_per_sample(
                    planned, context, programs[part], leaves[part], options.out, request.least, reason
                )
            return make_plan(planned, programs[part], batch.inputs[part], options, request, reason)

        if shards is None:
            return make(slice(None), request)
        # Check all outputs first, so that an error has the index of the sample in the whole batch.
        outputs_of(programs, context.tables, options.out, request.least)
        return plan_shards(make, split(len(batch), shards), request)

    def _others(self, first: Way, batch: "Recorded") -> set[Way]:
        """Returns the alternatives to the first way to run a batch."""
        others: set[Way] = set()
        is_auto = self.options.executor == "auto"
        is_known = first.executor in PREDICTIONS and EXECUTORS[first.executor].lower is not None
        if not is_known or batch.context.may_close_over_tracers:
            return others
        if not (is_auto or self.granularity == "auto") or not batch.is_concrete_or_differentiated_once:
            return others
        if self.granularity == "auto":
            others |= {Way("graph", first.executor), Way("op", first.executor)}
        if is_auto:
            others.add(Way(first.granularity, "per_sample"))
        return others

    def _least(
        self, like: Plan | Capacity | None, context: Context, shared: SharedArguments, arguments: Arguments
    ) -> Sizes:
        """Returns the least sizes of a plan, with the ids of a context's tables."""
        if isinstance(like, Plan):
            like = self._attached(like, shared)
            self._check_owner(like)
            if like.static.tables is context.tables:
                return like.sizes
            # The plan is of a dropped context, or of other shared arguments: translate its sizes by name.
            like = like.capacity if like.static.program.sizes is not None else None
        if like is None:
            return Sizes()
        sizes = sizes_of(like, context.tables, self._recorder(context, shared, arguments))
        item = None
        if self.options.out == "ragged":
            item = common_item([graph.items for graph in sizes.exemplars], context.tables.classes)
        return replace(sizes, items=like.items, item=item)

    def _recorder(self, context: Context, shared: SharedArguments, arguments: Arguments) -> Callable[[Any], Graph]:
        """Returns a function from an exemplar to its graph."""
        names = [part.name for part in arguments.mapped]

        def record(sample: Any) -> Graph:
            try:
                return context.graph(Structure(sample, 0, names, has_data=False), 0, shared, arguments)
            except ClosesOverTracer:
                raise
            except Exception as error:
                raise PlanError(
                    f"what was saved does not fit {self._name}, which cannot be recorded with a sample of it: {CHANGED}"
                ) from error

        return record

    def _attached(self, plan: Plan, shared: SharedArguments) -> Plan:
        """Returns the plan. A loaded plan gets a static part with the tables of this function."""
        saved: Any = plan.static
        if not isinstance(saved, SavedStatic):
            return plan
        saved.check(name_of(self.owner), shared.key)
        arguments = call_of(saved)
        shared = shared.in_order(arguments.orders)
        context = self._context(arguments, shared, plan)
        recorder = self._recorder(context, shared, arguments)
        return attach(plan, self.owner, shared.key, context.tables, recorder)

    def _check_owner(self, plan: Plan) -> None:
        owner = plan.static.owner
        if owner is not self.owner:
            raise PlanError(
                f"the plan was made by {describe_function(owner.__wrapped__)}, not by {self._name}: a plan is for the "
                "function that made it"
            )


def _instead_of_planning(traced: Sequence[Any]) -> str:
    """Returns the remedy for samples that are tracers, as part of an error message."""
    if any(list(compat.modes_of(leaf)) for leaf in traced):
        return "To differentiate with respect to samples, call .batch on the samples themselves"
    return (
        "Plan outside of the transformation, and pass it the plan in place of the samples: "
        "`plan = f.plan(params, samples)`, then `step(params, plan)` with `f.batch(params, plan)` inside the step"
    )


def _total(infos: list[CacheInfo], maxsize: int) -> CacheInfo:
    return CacheInfo(sum(i.hits for i in infos), sum(i.misses for i in infos), maxsize, sum(i.currsize for i in infos))
