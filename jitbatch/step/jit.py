"""`jitbatch.jit`: `jax.jit` for functions that batch samples of any shapes."""

import functools
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
import numpy as np

from jitbatch.inspect.report import Report
from jitbatch.plan.differentiable import names_of
from jitbatch.plan.prefetch import Ahead, default_ahead, on_device
from jitbatch.step.agreement import Agreement
from jitbatch.step.arrangements import Arrangement, Arrangements, kind_of
from jitbatch.step.capacity import StepCapacity
from jitbatch.step.channel import SECONDS
from jitbatch.step.differentiated import Differentiated
from jitbatch.step.examples import first_samples, samples_of
from jitbatch.step.on_mesh import OnMesh
from jitbatch.step.places import Bound, Parameters, Place
from jitbatch.step.processes import Processes
from jitbatch.step.rows import count_of, filled
from jitbatch.step.samples import About, Again, NewProgram, Samples, StepTrace, current_step
from jitbatch.step.split import Split, split_over
from jitbatch.util.caches import CacheInfo
from jitbatch.util.errors import ArgumentError, PlanError
from jitbatch.util.sites import describe_function

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRACES = 4
"""The limit of traces per call. Two are enough for a plan of every use, unless the step changes between traces."""


class Jitted(Generic[P, R]):
    """A compiled step, made by `jitbatch.jit`. It has the signature of the original function."""

    def __init__(
        self, fun: Callable[P, R], samples: Sequence[str], pad: int | None, rows: Sequence[str] | None,
        differentiated: Differentiated | None, split: Split | None, timeout: float, jit: Callable[..., Any],
        options: dict[str, Any],
    ):  # fmt: skip
        functools.update_wrapper(self, fun)
        self.__wrapped__ = fun
        self._name = describe_function(fun)
        self._parameters = Parameters.of(fun)
        self._places = tuple(map(Place.parse, samples))
        self._pad = pad
        self._rows = tuple(map(Place.parse, rows or ()))
        self._differentiated = differentiated
        for place in (*self._places, *self._rows, *(differentiated.targets if differentiated else ())):
            self._parameters.check(place, self._name)
        self._on_mesh = None if split is None else OnMesh(split, pad, None if rows is None else self._rows)
        self._processes = None
        if split is not None and len(split.processes) > 1:
            self._processes = Processes(fun, split.processes, timeout)
        self._jit = jit
        self._options = options
        self._compiled: dict[frozenset[str], Callable[..., Any]] = {}
        self._arrangements = Arrangements(self._places, self._kind_of)
        self._calls = self._traces = 0
        self._lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._with_plans(lambda compiled: compiled, args, kwargs, is_call=True)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<jitbatch.jit of {self._name}>"

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Lowers the step for these arguments, as `jax.jit(f).lower` does."""
        return self._with_plans(lambda compiled: compiled.lower, args, kwargs)

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Traces the step for these arguments, as `jax.jit(f).trace` does."""
        return self._with_plans(lambda compiled: compiled.trace, args, kwargs)

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Returns the shapes and dtypes of the step's outputs, as `jax.jit(f).eval_shape` does."""
        return self._with_plans(lambda compiled: compiled.eval_shape, args, kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Report | tuple[Report, ...]:
        """Reports how the samples of a call are batched; see `Batched.explain`.

        Args:
            args: the arguments of the step.

        Returns:
            A `Report`, or a tuple of reports if the step calls `.batch` on samples more than once.
        """
        call = self._parameters.bind(args, kwargs)
        arrangement = self._arrangements.of(call)
        if not self._arrangements.holds(arrangement):
            arrangement = self._discovered(call)
        samples = {place: self._padded(call.at(place))[0] for place in arrangement.places}
        reports = tuple(use.plan(samples, is_alone=True).explain() for use in arrangement.uses)
        if not reports:
            raise ArgumentError(f"{self._name} gives no samples to `.batch`: there is nothing to explain")
        return reports[0] if len(reports) == 1 else reports

    def prefetch(self, minibatches: Iterable[Any], ahead: int | None = None) -> Ahead[Any]:
        """Plans the samples of minibatches ahead of time, while the device runs earlier steps.

        Args:
            minibatches: an iterable, such as a data loader. An item is a tuple of the last positional arguments of the
                step, a dict of arguments by name, or the one argument that holds the samples.
            ahead: the number of minibatches to plan ahead of time, in a thread. With 0 there is no thread. The default
                is 2, and 0 on a CPU, where planning and the step compete for the same cores.

        Returns:
            An iterator of the same items, with planned samples. Pass them to the step. Before the first call of the
            step, items pass through unchanged. To stop early, close the iterator or use it as a context manager.
        """
        if self._processes is not None:
            return Ahead(self._planned_together(minibatches, ahead), 0)
        planned = (self._planned(item, self._arrangements.newest) for item in minibatches)
        return Ahead(on_device(planned), ahead)

    def _planned_together(self, minibatches: Iterable[Any], ahead: int | None) -> Iterator[Any]:
        """Yields the items of `prefetch` in one of several processes. All processes do this in the same order of calls.
        So planning, and its thread, start only when an item is taken and the uses of the step are known.

        All processes plan an item with one arrangement: the newest one when an earlier item was taken, which is taken
        before the planning of this item can start.
        """
        assert self._on_mesh is not None
        assert self._processes is not None
        items = iter(minibatches)
        with self._processes.part() as channel:
            while self._arrangements.newest is None:
                try:
                    item = next(items)
                except StopIteration:
                    break
                yield item
            agreement = self._on_mesh.agreement(channel)
            depth = default_ahead() if ahead is None else ahead
            newest = [self._arrangements.newest]  # when each item was taken
            planning = (
                self._planned(item, newest[max(index - depth, 0)], agreement) for index, item in enumerate(items)
            )
            with Ahead(on_device(planning), depth) as planned:
                for item in planned:
                    yield item
                    newest.append(self._arrangements.newest)

    def cache_info(self) -> dict[str, CacheInfo]:
        """Returns the hits and misses of the step's caches.

        `"rooms"`: a hit is a plan that fitted existing sizes, a miss a plan that needed new sizes. `"programs"`: a hit
        is a call that ran an existing program, a miss a call that traced and compiled a new one.
        """
        calls, traces = self._calls, self._traces
        return {
            "rooms": self._arrangements.rooms_info(),
            "programs": CacheInfo(max(calls - traces, 0), traces, traces, traces),
        }

    @property
    def capacity(self) -> StepCapacity:
        """The sizes of the step's programs.

        Save the capacity, and set it in another process before the first call. The step there then has the same sizes,
        and so the same results bit by bit.

        >>> import jitbatch
        >>> total = jitbatch.jitbatch(lambda scale, xs: scale * sum(xs))
        >>> step = jitbatch.jit(lambda scale, samples: total.batch(scale, samples))
        >>> _ = step(2.0, [(1.0, 2.0), (3.0,)])
        >>> again = jitbatch.jit(lambda scale, samples: total.batch(scale, samples))
        >>> again.capacity = jitbatch.StepCapacity.from_json(step.capacity.to_json())
        >>> _ = again(2.0, [(1.0,), (3.0,)])
        >>> again.capacity == step.capacity
        True
        """
        return self._arrangements.capacity()

    @capacity.setter
    def capacity(self, capacity: StepCapacity) -> None:
        if not isinstance(capacity, StepCapacity):
            raise ArgumentError(
                f"the capacity of {self._name} is the `step.capacity` of an equal step, or "
                f"`jitbatch.StepCapacity.from_json(text)`, not an object of type {type(capacity).__name__}. The "
                "`f.capacity(...)` of a decorated function is for its plans: `f.plan(..., like=capacity)`"
            )
        if not self._arrangements.restore(capacity):
            raise ArgumentError(f"{self._name} has been called: set its capacity before that")

    # Calls

    def _with_plans(
        self, choose: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any], is_call: bool = False
    ) -> Any:
        """Calls the compiled step with plans in place of samples.

        Args:
            choose: from the compiled step to the callable to call: the step itself, or its `lower`, for example.
            args, kwargs: the arguments of the step.
            is_call: whether the step runs, so that gradients with respect to samples get their structure.
        """
        call = self._parameters.bind(args, kwargs)
        with nullcontext() if self._processes is None else self._processes.told():
            return self._call(choose, call, is_call)

    def _call(self, choose: Callable[[Any], Any], call: Bound, is_call: bool) -> Any:
        if self._processes is not None and not self._processes.have_met:
            self._learn_together(self._processes, call)
        arrangement = self._arrangements.of(call)
        self._calls += 1
        for _ in range(MAX_TRACES):
            step = self._trace(call)
            with_handles = self._with_handles(step, arrangement, call, self._agreement())
            if self._on_mesh is not None:
                self._on_mesh.settle(step.handles.values())
            compiled = self._compiled_for(arrangement)
            try:
                with step:
                    result = self._run(step, with_handles, compiled, choose, is_call)
                differentiated = self._differentiated if is_call else None
                return result if differentiated is None else differentiated.unpacked(result, step.handles)
            except Again as again:
                if again.step is not step:
                    raise
                arrangement = self._learned_from(again, call)
        raise ArgumentError(
            f"{self._name} gives other samples to `.batch`, or other shared arguments, each time it is traced. What a "
            "compiled step does must depend on its arguments alone"
        )

    def _trace(self, call: Bound, is_complete: bool = True) -> StepTrace:
        names = self._differentiated.names if self._differentiated else ()
        device = None if self._on_mesh is None else self._on_mesh.split.mesh.devices.flat[0]
        asks = self._processes is not None and is_complete
        return StepTrace(self._name, self._arrangements.uses, call.arguments, is_complete, names, device, asks)

    def _run(
        self, step: StepTrace, call: Bound, compiled: Callable[..., Any], choose: Callable[[Any], Any], is_call: bool
    ) -> Any:
        if self._on_mesh is None:
            return call.call(choose(compiled))
        with self._on_mesh.mesh_set():
            placed = self._on_mesh.placed(call, in_place=self._jit is not jax.jit)
            if self._processes is None or not is_call:
                return placed.call(choose(compiled))
            return self._run_together(self._processes, step, call, placed, compiled)

    def _run_together(
        self, processes: Processes, step: StepTrace, call: Bound, placed: Bound, compiled: Callable[..., Any]
    ) -> Any:
        """Runs a call in several processes. A new program is compiled and compared in all of them before it runs."""
        processes.compare_sometimes(call)
        with processes.running() as ran:
            try:
                step.may_trace = False
                result = placed.call(compiled)
                ran(result)
                return result
            except NewProgram as new:
                if new.step is not step:
                    raise
        step.may_trace = True

        def lowered() -> Any:
            lowered = placed.call(compiled.lower)  # type: ignore[attr-defined]
            lowered.compile()
            return lowered

        processes.compare(call, lowered)
        with processes.running() as ran:
            result = placed.call(compiled)
            ran(result)
        return result

    def _agreement(self) -> Agreement | None:
        """Returns the agreement for a call that was not planned ahead of time; None in a program of one process."""
        if self._on_mesh is None or self._processes is None:
            return None
        return self._on_mesh.agreement(self._processes.channel)

    def _learn_together(self, processes: Processes, call: Bound) -> None:
        """Stores an arrangement for the first call in several processes. A process without samples gets examples."""
        assert self._on_mesh is not None
        failure: Exception | None = None
        found = self._arrangements.unknown
        try:
            found = self._discovered(call)
        except Exception as error:
            failure = error
        given = {place: call.at(place) for place in found.places}
        if not found.uses and self._on_mesh.lacks_samples(call, self._places):
            message = processes.examples(None)
            if message is not None:
                self._discovered(self._on_mesh.with_examples(call, samples_of(message)))
                return
        elif failure is None:
            processes.examples(lambda: first_samples(found.uses, given))
        if failure is not None:
            raise failure

    def _learned_from(self, again: Again, call: Bound) -> Arrangement:
        """Stores and returns the arrangement of a trace that met new uses of samples. In several processes, one without
        samples gets examples."""
        processes, on_mesh = self._processes, self._on_mesh
        if processes is None or on_mesh is None:
            return self._learned(again.step, call)
        call = on_mesh.as_given(call)
        if again.lacks_samples:
            message = processes.examples(None)
            if message is None:
                raise PlanError("no process has samples: leave minibatches without samples out")
            return self._discovered(on_mesh.with_examples(call, samples_of(message)))
        found = self._learned(again.step, call)
        processes.examples(lambda: first_samples(found.uses, {place: call.at(place) for place in found.places}))
        return found

    def _discovered(self, call: Bound) -> Arrangement:
        """Traces the step without compiling it, and returns its arrangement."""
        step = self._trace(call, is_complete=False)
        nothing = self._arrangements.unknown
        with_handles = self._with_handles(step, nothing, call, None)
        try:
            with nullcontext() if self._on_mesh is None else self._on_mesh.mesh_set(), step:
                with_handles.call(self._compiled_for(nothing))
        except Again as again:
            if again.step is not step:
                raise
        return self._learned(step, call)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the body of the step under the trace. Raises `Again` if a use has no plan yet."""
        step = current_step()
        assert step is not None
        if not step.may_trace:
            raise NewProgram(step)
        call = self._parameters.bind(args, kwargs)
        if self._on_mesh is not None:
            call = self._on_mesh.with_real_rows(call)
        if self._differentiated is not None:
            call = self._differentiated.in_body(call, self._places)
        step.enter_body(call.arguments)
        try:
            result = call.call(self.__wrapped__)
        except AttributeError as error:
            if error.name == "mask" and not isinstance(error.obj, Samples):
                error.add_note('jitbatch: samples have a mask if they are named, as by jitbatch.jit(samples="trees")')
            raise
        if not step.is_complete:
            raise Again(step)
        if self._on_mesh is not None and not step.met:
            raise ArgumentError(
                f"{self._name} gives no samples to `.batch`: on a mesh there is nothing to split. A plan of `f.plan` "
                "or `f.plans` is not for a step on a mesh, which plans for all of its devices and processes. Pass the "
                "samples themselves: step(params, samples). To plan ahead, in place of f.plans(params, minibatches): "
                "`for samples in step.prefetch(minibatches)`"
            )
        self._traces += 1
        return result if self._differentiated is None else self._differentiated.returned(result)

    def _compiled_for(self, arrangement: Arrangement) -> Callable[..., Any]:
        """Returns the compiled step for these places of samples. Samples are never donated."""
        holding = frozenset(place.argument for place in arrangement.places)
        with self._lock:
            if holding not in self._compiled:

                @functools.wraps(self.__wrapped__)
                def body(*args: Any, **kwargs: Any) -> Any:
                    return self._traced(*args, **kwargs)

                self._compiled[holding] = self._jit(body, **self._without_donating(arrangement.places))
            return self._compiled[holding]

    def _without_donating(self, places: Sequence[Place]) -> dict[str, Any]:
        """Returns the options of `jax.jit`, without donation of the arguments that hold samples."""
        options = dict(self._options)
        for option in ("donate_argnums", "donate_argnames"):
            names = self._names_in(option)
            for place in places:
                if place.argument in names and place.path:
                    raise ArgumentError(
                        f"the argument {place.argument!r} of {self._name} is donated, but holds samples, at {place}, "
                        "which are not. Pass them as an argument of their own"
                    )
            kept = [name for name in names if name not in {place.argument for place in places}]
            if len(kept) < len(names):
                positions = self._parameters.positional
                options[option] = [positions.index(name) for name in kept] if option == "donate_argnums" else kept
        return options

    def _names_in(self, option: str) -> list[str]:
        """Returns the names of the arguments in an option of `jax.jit`, such as `donate_argnums`."""
        value = self._options.get(option)
        if value is None:
            return []
        names = self._parameters.positional
        return [
            name if isinstance(name, str) else names[name]
            for name in ([value] if isinstance(value, int | str) else value)
        ]

    # Arrangements

    def _learned(self, step: StepTrace, call: Bound) -> Arrangement:
        """Stores and returns the arrangement of a step that was traced."""
        if self._differentiated is not None:
            self._differentiated.check_new(step.new)
        return self._arrangements.learn(step.met, call)

    def _kind_of(self, call: Bound, places: Iterable[Place]) -> Hashable:
        """Returns the kind of a call's arguments, without the samples at these places."""
        if self._on_mesh is not None:
            call = self._on_mesh.with_given_rows(call)
        for place in (*places, *(self._differentiated.targets if self._differentiated else ())):
            if place.argument in call.arguments:
                call = call.replaced(place, None)
        return kind_of(call.arguments, self._names_in("static_argnums") + self._names_in("static_argnames"))

    def _with_handles(
        self, step: StepTrace, arrangement: Arrangement, call: Bound, agreement: Agreement | None
    ) -> Bound:
        """Returns the call with handles in place of samples, and rows filled up to the number of samples."""
        if self._on_mesh is not None and arrangement.uses:  # the first trace, which finds them, is on one device
            return self._on_mesh.with_handles(step, arrangement.places, arrangement.uses, call, agreement)
        places = [place for place in arrangement.places if place.argument in call.arguments]
        arguments = {place: call.at(place) for place in places}
        padded = {place: self._padded(value) for place, value in arguments.items()}
        step.samples.update({place: samples for place, (samples, _) in padded.items()})
        for place, (samples, mask) in padded.items():
            uses = tuple(use for use in arrangement.uses if use.places[0] == place)
            about = About(place, count_of(samples), uses, self._name)
            value = arguments[place]
            if not isinstance(value, Samples) or value._about != about:
                value = Samples(about, tuple(use.plan(step.samples) for use in uses), mask, samples)
            step.handles[place] = value
            call = call.replaced(place, value)
        counts = [len(handle) for handle in step.handles.values()]
        for place in self._rows if counts else ():
            call = call.replaced(place, filled(call.at(place), max(counts), str(place)))
        return call if self._differentiated is None else self._differentiated.packed(call, step.handles)

    def _padded(self, samples: Any) -> tuple[Any, Any]:
        """Fills samples up to a multiple of `pad` by repeating the last one.

        Returns:
            The samples, and a mask that is False for the repeated ones; the mask is None without `pad`.
        """
        if isinstance(samples, Samples):
            return samples._given, samples._mask
        if self._pad is None:
            return samples, None
        count = count_of(samples)
        room = -(-count // self._pad) * self._pad
        return filled(samples, room), np.arange(room) < count

    def _planned(self, item: Any, arrangement: Arrangement | None, agreement: Agreement | None = None) -> Any:
        """Returns an item of `prefetch` with planned samples."""
        if arrangement is None or not arrangement.places:
            return item
        call = self._item_arguments(item, arrangement)
        if not any(place.argument in call.arguments for place in arrangement.places):
            raise ArgumentError(
                f"an item of `prefetch` gives {', '.join(call.arguments) or 'nothing'} to {self._name}, but the "
                f"samples are {', '.join(map(str, arrangement.places))}. Items are tuples of its last positional "
                "arguments, or dicts of arguments by name"
            )
        step = self._trace(call)
        planned = self._with_handles(step, arrangement, call, agreement).arguments
        if isinstance(item, tuple):
            return tuple(planned.values())
        return planned if isinstance(item, Mapping) else next(iter(planned.values()))

    def _item_arguments(self, item: Any, arrangement: Arrangement) -> Bound:
        if isinstance(item, Mapping):
            named = dict(item)
        elif isinstance(item, tuple):
            named = dict(zip(self._parameters.positional[-len(item) :], item, strict=True))
        else:
            named = {arrangement.places[0].argument: item}
        return Bound(self._parameters, (), named)


@overload
def jit(fun: Callable[P, R], /) -> Jitted[P, R]: ...
@overload
def jit(
    fun: None = None, /, *, samples: str | Sequence[str] = (), pad: int | None = None,
    rows: str | Sequence[str] | None = None, differentiable: str | Sequence[str] | None = None,
    targets: str | Sequence[str] = (), mesh: jax.sharding.Mesh | None = None, axis: str | None = None,
    timeout: float | None = None, jit: Callable[..., Any] = jax.jit, **options: Any,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...  # fmt: skip
@overload
def jit(
    fun: Callable[P, R], /, *, samples: str | Sequence[str] = (), pad: int | None = None,
    rows: str | Sequence[str] | None = None, differentiable: str | Sequence[str] | None = None,
    targets: str | Sequence[str] = (), mesh: jax.sharding.Mesh | None = None, axis: str | None = None,
    timeout: float | None = None, jit: Callable[..., Any] = jax.jit, **options: Any,
) -> Jitted[P, R]: ...  # fmt: skip
def jit(
    fun: Any = None, /, *, samples: str | Sequence[str] = (), pad: int | None = None,
    rows: str | Sequence[str] | None = None, differentiable: str | Sequence[str] | None = None,
    targets: str | Sequence[str] = (), mesh: jax.sharding.Mesh | None = None, axis: str | None = None,
    timeout: float | None = None, jit: Callable[..., Any] = jax.jit, **options: Any,
) -> Any:  # fmt: skip
    """`jax.jit` for functions that batch samples of any shapes.

    Arguments that the body passes to the `.batch` of a decorated function are samples: lists of trees, graphs,
    sentences. Each call replaces the samples by a plan before it runs the compiled step. The plan has room for other
    samples too. So the step is compiled once, and again only when samples need more room, have a new cell type, or
    differ in number.

    Args:
        fun: the function to compile, as for `jax.jit`.
        samples: the arguments that hold samples: `"trees"`, `"batch['trees']"`, or a sequence of such names. By
            default, a first trace finds the arguments that the body passes to `.batch`.
        pad: fill the samples up to a multiple of this number by repeating the last one; `trees.mask` is False for the
            repeated ones. A smaller last minibatch then needs no program of its own. Needs `samples`.
        rows: the arguments with one row per sample, such as labels. `pad` fills them up in the same way. On a mesh,
            they are split like samples: name them in a program of several processes, where each has its own rows.
        differentiable: the inputs of samples that are differentiated, named as for `f.plan`. In the body, `jax.grad`
            differentiates with respect to the samples: these inputs are their leaves. The gradient is a pytree with the
            same leaves for `jax.tree.map`, and has `.sums()`, the sum over each sample's values. If the step returns
            it, in tuples, lists or dicts, the caller gets it in the structure of the samples, with None for other
            inputs. Needs `samples`.
        targets: the arguments with values for these inputs, such as forces, as lists in the structure of the samples.
            In the body they are pytrees with the same leaves as a gradient.
        mesh: run the step on this mesh. The samples of a call are split over its devices, and so are `rows`; all other
            arrays that are not on the mesh are replicated. The body is the same as on one device, and sees all samples.
            In a program of several processes (`jax.distributed`), each process calls the step with its own samples and
            rows. All other arguments must be equal in all processes.
        axis: the axis of the mesh that samples are split over; its only axis by default.
        timeout: in a program of several processes, the seconds that a process waits for others that are alive, half an
            hour by default. JAX detects dead processes by their heartbeat (see `jax.distributed.initialize`).
        jit: the compiling transformation: `jax.jit`, `flax.nnx.jit` or `equinox.filter_jit`.
        options: options of `jax.jit`: `static_argnames`, `donate_argnums`, `in_shardings` and so on. Samples are never
            donated.

    Returns:
        The compiled function. Its methods `lower`, `trace` and `eval_shape` work like those of `jax.jit`. It also has
        `explain`, `prefetch`, `capacity` and `cache_info`.

    >>> import jax, jax.numpy as jnp
    >>> import jitbatch
    >>> @jitbatch.jitbatch
    ... def total(scale, tree):
    ...     return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree
    >>> @jitbatch.jit
    ... def step(scale, trees, targets):
    ...     loss = lambda scale: ((total.batch(scale, trees) - targets) ** 2).mean()
    ...     return scale - 0.01 * jax.grad(loss)(scale)
    >>> print(f"{step(1.0, [(1, (2, 3)), 4], jnp.array([12.0, 8.0])):.2f}")
    1.52
    """
    if pad is not None and (not isinstance(pad, int) or pad < 1):
        raise ArgumentError(f"pad={pad!r} is not a positive number of samples")
    if pad is not None and not samples:
        raise ArgumentError(f'pad={pad} fills samples up: name them, jitbatch.jit(samples="...", pad={pad})')
    found = names_of(differentiable)
    target_names = [targets] if isinstance(targets, str) else targets
    if found and not samples:
        raise ArgumentError('differentiable names inputs of samples: name these, too, jitbatch.jit(samples="...")')
    if found and mesh is not None:
        raise ArgumentError(
            "differentiable is not for steps on a mesh. Make a plan with shards, f.plan(..., shards=n, "
            "differentiable=...), and differentiate inside of jax.shard_map"
        )
    if target_names and not found:
        raise ArgumentError(
            "targets are values for differentiated inputs: name these, jitbatch.jit(differentiable=...)"
        )
    differentiated = Differentiated(found, tuple(map(Place.parse, target_names))) if found else None
    names = [samples] if isinstance(samples, str) else samples
    row_names = [rows] if isinstance(rows, str) else rows
    if axis is not None and mesh is None:
        raise ArgumentError(
            f"axis={axis!r} is an axis of a mesh: give the mesh, jitbatch.jit(mesh=mesh, axis={axis!r})"
        )
    if timeout is not None and (mesh is None or not timeout > 0):
        raise ArgumentError(f"timeout={timeout!r} is for the processes of a mesh: give the mesh, and a positive time")
    split = None if mesh is None else split_over(mesh, axis)

    def decorate(fun: Callable[P, R]) -> Jitted[P, R]:
        if not callable(fun):
            raise ArgumentError(f"jitbatch.jit compiles functions, got {fun!r}")
        return Jitted(fun, names, pad, row_names, differentiated, split, timeout or SECONDS, jit, options)

    return decorate if fun is None else decorate(fun)
