"""Samples inside `jitbatch.jit`: handles in place of arguments, and the trace that finds their uses."""

import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.compiles import trial
from jitbatch.plan.differentiable import Names
from jitbatch.plan.plan import Plan
from jitbatch.plan.recorded import Call
from jitbatch.plan.request import PlanRequest
from jitbatch.plan.rooms import Room, Rooms
from jitbatch.record.arguments import Arguments
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.step.buffers import Buffers
from jitbatch.step.places import Place, find, paths_to
from jitbatch.step.rows import count_of
from jitbatch.step.split import Parts, Run
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError
from jitbatch.util.platforms import platform_of
from jitbatch.util.sites import describe_function

MAX_COUNTS = 64
"""The number of sample counts for which a use stores rooms."""


@dataclass(frozen=True, eq=False)
class Use:
    """A call of `.batch` on samples in the body of a step.

    Attributes:
        function: the decorated function.
        arguments: the arguments of the call, with the `Place`s of the samples in place of mapped arguments.
        shared: its shared arguments, without their values.
        differentiable: the names of the inputs that the step differentiates.
        name: the name of the use. A step has the same names in every process.
        saved: the rooms of an earlier run, by the number of samples of a shard.
        rooms: the rooms of its plans, by the number of samples of a shard.
    """

    function: Any
    arguments: Arguments
    shared: SharedArguments
    differentiable: Names = ()
    name: str = ""
    saved: Mapping[int, Sequence[Room]] = field(default_factory=dict)
    rooms: dict[int, Rooms] = field(default_factory=dict)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(part.value for part in self.arguments.mapped)

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal uses."""
        return self.function, self.arguments.layout, self.arguments.axes, self.places, self.shared.key

    def plan(self, samples: Mapping[Place, Any], is_alone: bool = False, shards: int | None = None) -> Plan:
        """Plans samples.

        Args:
            samples: the samples at each place.
            is_alone: take the sizes of these samples alone, instead of a room of this use.
            shards: the number of shards, or None.
        """
        call = self._call(samples)
        rooms = None if is_alone else self._rooms_for(len(call.samples) // (shards or 1))
        request = PlanRequest(shards=shards, rooms=rooms, differentiable=self.differentiable)
        return self.function._planner.plan(call, request)

    def plan_like(
        self, samples: Mapping[Place, Any], like: Plan | Capacity | None, shards: int, has_headroom: bool
    ) -> tuple[Plan, bool]:
        """Plans samples with at least the sizes of `like`.

        Args:
            samples: the samples at each place.
            like: a plan or a capacity, or None.
            shards: the number of shards.
            has_headroom: whether sizes that are larger than those of `like` have headroom.

        Returns:
            The plan, and whether it is for the program of the plan `like`.
        """
        rooms = Rooms(True, () if like is None else [Room(like, sys.maxsize)]) if has_headroom else None
        plan = self.function._planner.plan(self._call(samples), PlanRequest(like, shards, rooms))
        return plan, isinstance(like, Plan) and plan.static is like.static

    def settle(self, count: int, plan: Plan) -> None:
        """Replaces the rooms for a number of samples by the room that the processes have agreed on."""
        nodes = sum(room for _, room in plan.static.capacity.nodes)
        self._rooms_for(count).settle(Room(replace(plan, graphs=()), nodes))

    def _call(self, samples: Mapping[Place, Any]) -> Call:
        """Returns the call with samples in place of their `Place`s."""
        return Call(self.arguments, self.shared).with_mapped([samples[place] for place in self.places])

    def _rooms_for(self, count: int) -> Rooms:
        rooms = self.rooms.get(count)
        if rooms is None:
            if len(self.rooms) >= MAX_COUNTS:
                self.rooms.pop(next(iter(self.rooms)), None)
            rooms = self.rooms.setdefault(count, Rooms(True, self.saved.get(count, ())))
        return rooms


@dataclass(frozen=True)
class About:
    """The static part of a `Samples` handle.

    Attributes:
        place, count: the place and number of the samples.
        uses: their uses.
        step: the name of the step.
        parts: on a mesh, the samples of each shard; otherwise None.
    """

    place: Place
    count: int
    uses: tuple[Use, ...]
    step: str
    parts: Parts | None = None


@jax.tree_util.register_pytree_node_class
class Samples:
    """A handle for the samples of a step, inside of its body.

    Pass it whole to `f.batch(params, samples)`. `len(samples)` is the number of samples, padding included. Compute
    everything else before the call of the step, because the compiled step gets plans in place of samples.
    """

    _instead = "Do that before the step is called, and pass the result as another argument"

    def __init__(
        self, about: About, plans: tuple[Plan, ...] | Buffers, mask: Any = None, given: Any = None, terms: Any = None
    ):
        self._about = about
        self._plans = plans  # on a mesh, in buffers
        self._mask = mask
        self._given = given  # the samples themselves; the body has no access to them
        self._terms = terms  # the agreement of several processes (see `step/agreement`)

    def tree_flatten(self) -> tuple[tuple[Any, ...], About]:
        return (self._plans, self._mask), self._about

    @classmethod
    def tree_unflatten(cls, about: About, children: Sequence[Any]) -> "Samples":
        return cls(about, *children)

    def on_device(self) -> "Samples":
        """Returns the handle with its plans copied to the device. `jitbatch.jit` does this itself."""
        plans = self._plans
        plans = jax.device_put(plans) if isinstance(plans, Buffers) else tuple(plan.on_device() for plan in plans)
        return Samples(self._about, plans, jax.device_put(self._mask), self._given, self._terms)

    def _plan(self, index: int) -> Plan:
        assert not isinstance(self._plans, Buffers)
        return self._plans[index]

    def __len__(self) -> int:
        return self._about.count

    @property
    def mask(self) -> Any:
        """bool [samples]; False for padding."""
        return jnp.ones(self._about.count, bool) if self._mask is None else self._mask

    def __repr__(self) -> str:
        return f"<{self._about.count} samples, the argument {self._about.place} of {self._about.step}>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArgumentError(
            f"the argument {self._about.place} of {self._about.step} holds samples. In the body of the step they can "
            "be given whole to `.batch`, and have a length and a `.mask`; they cannot be indexed, iterated over or "
            f"computed with. {self._instead}"
        )

    __getitem__ = __iter__ = __array__ = __jax_array__ = __bool__ = __contains__ = __eq__ = _refuse  # type: ignore
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"the argument {self._about.place} of {self._about.step} holds samples, which have no attribute {name!r} "
            "in the body of the step. Read it before the step is called, and pass it as another argument"
        )


class Again(Exception):
    """Stops the trace of a step in which a use had no plan. All uses of the step are known now."""

    def __init__(self, step: "StepTrace", lacks_samples: bool = False):
        super().__init__("jitbatch.jit traces the step again, with a plan for everything that it batches")
        self.step = step
        self.lacks_samples = lacks_samples  # a new use has no samples in this process


class NewProgram(Exception):
    """Stops the trace of a step that runs in several processes, so that they compare the program before it runs."""

    def __init__(self, step: "StepTrace"):
        super().__init__("jitbatch.jit compares a new program in all processes")
        self.step = step


class StepTrace:
    """A call of a step. If JAX traces the step, this object collects the uses of samples.

    Attributes:
        name: the name of the step, for messages.
        arguments: the arguments of the call, by name.
        samples: the samples among the arguments, by place.
        handles: the `Samples` handles, by place.
        met: the uses in the trace, by their keys.
        is_complete: whether there was a plan for each use.
        may_trace: whether the body may be traced now; else it raises `NewProgram`.
        new: the plans that the trace made, for uses without one.
    """

    def __init__(
        self, name: str, known: Mapping[Hashable, Use], arguments: Mapping[str, Any], is_complete: bool = True,
        differentiable: Names = (), device: Any = None, asks_for_samples: bool = False,
    ):  # fmt: skip
        """
        Args:
            name, arguments, is_complete: as the attributes.
            known: the uses of earlier traces, by their keys.
            differentiable: the names of the inputs that the step differentiates.
            device: a device of the step's mesh; None without a mesh.
            asks_for_samples: whether another process has samples, if there are none here.
        """
        self.name = name
        self.arguments = arguments
        self.samples: dict[Place, Any] = {}
        self.handles: dict[Place, Samples] = {}
        self.met: dict[Hashable, Use] = {}
        self.is_complete = is_complete
        self.may_trace = True
        self.new: list[Plan] = []
        self._differentiable = differentiable
        self._device = device
        self._asks_for_samples = asks_for_samples
        self._known = known
        self._traced: Mapping[str, Any] = {}

    def __enter__(self) -> "StepTrace":
        _steps().append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _steps().pop()

    def enter_body(self, arguments: Mapping[str, Any]) -> None:
        """Stores the arguments of the body, which are tracers and handles."""
        self._traced = arguments

    def batch(self, function: Any, arguments: Arguments, run: Run, leaves: Sequence[Any]) -> Any:
        """Runs a call of `.batch` on samples of this step.

        Args:
            function: the decorated function.
            arguments: the arguments of the call.
            run: runs a plan.
            leaves: the leaves of the shared arguments.

        Returns:
            The outputs, or None if the arguments are not samples of this step.
        """
        places = [self._place(part.value) for part in arguments.mapped]
        if all(place is None for place in places):
            return None
        for part, place in zip(arguments.mapped, places, strict=True):
            if place is None:
                raise ArgumentError(
                    f"{describe_function(function.__wrapped__)} is given samples of {self.name}, and as {part.name!r} "
                    "something that is no argument of it. Mapped arguments become part of a plan, which is made before "
                    "the step runs: compute this before the step is called, and pass it as an argument"
                )
        remaining = iter(places)
        parts = [part._replace(value=None if part.axis is None else next(remaining)) for part in arguments.parts]
        shared = SharedArguments(arguments.shared).without_values(self._platform(places))
        use = Use(function, arguments._replace(parts=parts), shared, self._differentiable)
        use = self.met.setdefault(use.key, self._known.get(use.key, use))
        samples = arguments.mapped[0].value
        parts = samples._about.parts if isinstance(samples, Samples) else None
        if parts is not None and function._planner.options.out == "list":
            raise ArgumentError(
                f'{describe_function(function.__wrapped__)} has out="list", but on a mesh the results of all samples '
                'are arrays: use out="stack" or out="ragged"'
            )
        if isinstance(samples, Samples) and use in samples._about.uses:
            self._check(samples)
            index = samples._about.uses.index(use)
            if isinstance(samples._plans, Buffers):
                assert parts is not None
                return parts.split.run(run, samples._plans, index, leaves, parts)
            return run(samples._plan(index), leaves)
        self.is_complete = False
        if self._asks_for_samples and not all(count_of(self._samples(place)) for place in use.places):
            raise Again(self, lacks_samples=True)
        with jax.ensure_compile_time_eval():  # JAX splits an array of samples
            plan = use.plan({place: self._samples(place) for place in use.places}, is_alone=True)
        self.new.append(plan)
        with trial():  # the step is traced again, with plans for the samples
            outputs = run(plan, leaves)
        return outputs if parts is None else parts.repeated(outputs)

    def _check(self, samples: Samples) -> None:
        """Raises `ArgumentError` if a handle does not belong to this call of the step."""
        if _leaf_types(samples._plans) != _leaf_types(self.handles[samples._about.place]._plans):
            raise ArgumentError(
                f"the argument {samples._about.place} of {self.name} was changed in the body of the step, by "
                "`jax.vmap`, `jax.tree.map` or the like. In there its leaves are those of plans, not of samples"
            )

    def _platform(self, places: Sequence[Place | None]) -> str:
        """Returns the platform that the step runs on: that of its mesh, or of its arguments without the samples."""
        if self._device is not None:
            return self._device.platform
        holding = {place.argument for place in places if place is not None}
        values = [value for name, value in self.arguments.items() if name not in holding]
        return platform_of(jax.tree.leaves(values))

    def _samples(self, place: Place) -> Any:
        return self.samples[place] if place in self.samples else place.of(self.arguments[place.argument])

    def _place(self, value: Any) -> Place | None:
        """Returns the place of a mapped argument in the arguments of the step, or None."""
        if isinstance(value, Samples):
            return value._about.place
        leaves = jax.tree.leaves(value)
        if not leaves and isinstance(value, list | tuple) and value:  # samples of `Static` objects alone
            places = (
                Place(name, path) for name, argument in self._traced.items() for path in paths_to(argument, value)
            )
            return next(places, None)
        if not any(map(compat.is_tracer, leaves)):
            return None
        ids, structure = list(map(id, leaves)), jax.tree.structure(value)
        for name, argument in self._traced.items():
            path = find(argument, ids, structure)
            if path is not None:
                return Place(name, path)
        alike = [name for name, argument in self._traced.items() if jax.tree.structure(argument) == structure]
        if alike and structure.num_leaves > 1:
            raise ArgumentError(
                f"`.batch` is given samples that look like the argument {alike[0]!r} of {self.name}, but were "
                "changed, or came through a transformation such as `jax.checkpoint`. If they are that argument, name "
                f'it: jitbatch.jit(samples="{alike[0]}"); else compute them before the step is called'
            )
        if not set(map(id, jax.tree.leaves(dict(self._traced)))).isdisjoint(ids):
            raise ArgumentError(
                f"`.batch` is given a part of an argument of {self.name}, or parts of several. It takes an argument as "
                "a whole, or everything at one place in it. Take samples apart before the step is called, and pass "
                'each part as an argument; or name the argument that holds them: jitbatch.jit(samples="...")'
            )
        return None


def _leaf_types(plans: tuple[Plan, ...] | Buffers) -> list[Any]:
    return [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(plans)]


_local = threading.local()


def _steps() -> list[StepTrace]:
    if not hasattr(_local, "steps"):
        _local.steps = []
    return _local.steps


def current_step() -> StepTrace | None:
    """Returns the innermost step call of this thread, or None."""
    steps = _steps()
    return steps[-1] if steps else None
