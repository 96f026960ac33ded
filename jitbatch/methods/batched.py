"""`Batched`: a decorated function, with the methods that plan, run and explain batches."""

import functools
import inspect
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import jax

from jitbatch.inspect.check import Check, check, shortest_float
from jitbatch.inspect.explain import explain_plan
from jitbatch.inspect.measure import time_run, time_steps
from jitbatch.inspect.report import Report, Times
from jitbatch.inspect.traced import TracedSamples
from jitbatch.methods.bound import BoundBatched
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.constant_inputs import with_constant_inputs
from jitbatch.plan.differentiable import check_names, names_of
from jitbatch.plan.options import Options
from jitbatch.plan.plan import Plan
from jitbatch.plan.planner import Planner
from jitbatch.plan.prefetch import Ahead, on_device, plans_of
from jitbatch.plan.recorded import Call
from jitbatch.plan.request import PlanRequest
from jitbatch.plan.run import execute, results_of
from jitbatch.record.arguments import each_call, shared_arguments
from jitbatch.record.call_arguments import weakly
from jitbatch.record.call_forms import CallForms
from jitbatch.record.decorated import Decorated
from jitbatch.record.shared_arguments import SharedArguments, shared_names
from jitbatch.serve.arguments import ServedArguments, Shared
from jitbatch.serve.limits import Limits
from jitbatch.serve.server import Server
from jitbatch.serve.whole import WholeBatches
from jitbatch.serve.worker import Runner
from jitbatch.step.samples import current_step
from jitbatch.util.caches import CacheInfo
from jitbatch.util.compat import is_compiling
from jitbatch.util.errors import ArgumentError, JitbatchError
from jitbatch.util.sites import describe_function, describe_source
from jitbatch.util.wrapped import copied_methods, unshadowed

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

METHODS = ("batch", "plan", "plans", "capacity", "explain", "check", "serve", "cache_info", "rollout")


class Batched(Decorated, Generic[P, R]):
    """A function decorated by `jitbatch`. Call it on one sample, or call `.batch` on many."""

    def __init__(
        self,
        fun: Callable[P, R],
        in_axes: Any,
        granularity: str,
        policy: str,
        executor: str,
        dedupe: bool,
        out: str,
        loops: str,
        platform: str,
    ):
        functools.update_wrapper(self, fun)  # first: it copies attributes, and `fun` may wrap a decorated function
        self.__wrapped__ = fun
        self.__dict__.update(copied_methods(fun, METHODS))
        self._in_axes = in_axes
        self._is_method = False
        self._checked: type | None = None
        self._last_run: Any = None  # see `plan/compiles`
        self._programs_run = 0
        self._traced = TracedSamples()
        self._key = weakly(fun)
        self._planner = Planner(self, granularity, Options(policy, executor, dedupe, out, loops, platform))

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __repr__(self) -> str:
        return f"<jitbatch of {describe_function(self.__wrapped__)}>"

    # Like a plain function, a copy is the object itself, and a pickle holds the name.

    def __copy__(self) -> "Batched[P, R]":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Batched[P, R]":
        return self

    def __reduce__(self) -> str:
        name = getattr(self, "__qualname__", None) or type(self.__wrapped__).__name__
        if _found_by_name(self.__module__, name) is not self:
            raise pickle.PicklingError(
                f"{self!r} cannot be pickled: like a plain function it is pickled by name, and "
                f"`{self.__module__}.{name}` is not it. Decorate at the top level of a module or class, and keep the "
                "function's name"
            )
        return name

    # On a method, `self` is the shared argument.

    def __set_name__(self, owner: type, name: str) -> None:
        qualified = getattr(self.__wrapped__, "__qualname__", "")
        self._is_method = self._is_method or qualified == f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "Batched[P, R]": ...
    @overload
    def __get__(
        self: "Batched[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "BoundBatched[Q, R]": ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if owner is not self._checked:
            self._check_owner(owner)
            self._checked = owner
        method: Any = self
        is_bound = instance is not None and (self._is_method or instance is owner)  # class method
        return BoundBatched(method, instance) if is_bound else self

    def _check_owner(self, owner: type | None) -> None:
        linen = sys.modules.get("flax.linen")
        if linen is not None and owner is not None and issubclass(owner, linen.Module):
            raise JitbatchError(
                f"{describe_function(self.__wrapped__)} is a method of the Flax Linen module {owner.__name__}. Linen "
                "replaces methods by its own wrappers, so they cannot be decorated. Decorate a function of the "
                "variables instead: `jitbatch(lambda variables, sample: model.apply(variables, sample))`"
            )

    # Batches

    @unshadowed
    def batch(self, *args: Any, **kwargs: Any) -> Any:
        """Maps the function over samples, as `jax.vmap` maps over rows.

        Args:
            args: the arguments of the function, positional or by name. Each mapped argument is a sequence of samples,
                or an array with an axis of samples. Alternatively, the shared arguments, and a `Plan` in place of the
                first mapped argument.

        Returns:
            The outputs of all samples, stacked on axis 0. For `out="list"`, a list of outputs; for `out="ragged"`, a
            `Ragged`.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> @jitbatch
        ... def total(scale, tree):
        ...     return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree
        >>> total.batch(jnp.float32(10), [(1, (2, 3)), 4, ((5, 6), (7, 8))]).tolist()
        [60.0, 40.0, 260.0]
        """
        plan = find_plan(args, kwargs)
        if plan is not None:
            shared = SharedArguments(self._shared_beside_plan(args, kwargs))
            plan = self._planner.ready(plan, shared)
            shared.check_data(plan.static.call)
            return execute(with_constant_inputs(plan), shared.leaves)
        call = self._call(args, kwargs)
        step = current_step()
        if step is not None:

            def run(plan: Plan, leaves: Sequence[Any]) -> Any:
                return execute(with_constant_inputs(self._planner.ready(plan, call.shared)), leaves)

            outputs = step.batch(self, call.arguments, run, call.shared.leaves)
            if outputs is not None:
                return outputs
        if not call.samples:
            return self._planner.results_of_no_samples(call)
        call.shared.check_data(call.arguments)
        if step is None and is_compiling():
            self._traced.note(call.arguments.mapped, describe_function(self.__wrapped__))
        return execute(self._planner.plan_for_once(call), call.shared.leaves, is_eager=True)

    @unshadowed
    def plan(
        self, *args: Any, like: Plan | Capacity | Literal["auto"] | None = "auto", shards: int | None = None,
        differentiable: str | Sequence[str] | None = None, **kwargs: Any,
    ) -> Plan:  # fmt: skip
        """Analyses a batch without running it.

        Args:
            args: as for `batch`. Planning reads only the structure, shapes and dtypes of shared arguments, so these
                may be instances of `jax.ShapeDtypeStruct`.
            like: the sizes of the plan. `"auto"`, the default, reuses the sizes of earlier plans for the same number
                of samples, so that their compiled programs run this plan too; see the page on plans. A `Plan` or its
                `capacity` gives the least sizes and types. None takes the sizes of this batch alone.
            shards: the number of shards. The samples are split into consecutive shards of equal size. The plan's
                leaves have a leading axis of shards, for `jax.shard_map` to split over devices; `plan.shard(i)` is
                shard `i`.
            differentiable: the inputs that are differentiated: the name of an argument, of a key or attribute in a
                sample, several of these joined by dots (`"molecule.positions"`), or a sequence of names. All arrays of
                floats there are leaves of the plan, `plan.inputs`; `plan.unpack` returns gradients in the structure of
                the samples. Calls that depend on them are not merged.

        Returns:
            A `Plan`, for `batch(shared, plan)`. Inputs that are not `differentiable` are constants.

        >>> import jax
        >>> from jitbatch import jitbatch
        >>> @jitbatch
        ... def scaled(scale, xs):
        ...     return scale * sum(xs)
        >>> scaled.plan(jax.ShapeDtypeStruct((), "float32"), [(1.0, 2.0), (3.0, 4.0)])
        Plan(2 samples: 4 nodes, 4 distinct, 2 levels, 2 types -> 2 steps (at least 2), width 2.0, 0% padding, fused)
        """
        names = names_of(differentiable)
        plan = self._planner.plan(self._call(args, kwargs), PlanRequest(like, shards, differentiable=names))
        check_names(plan.graphs, names, plan.static.call)
        return plan

    @unshadowed
    def capacity(self, *args: Any, batch_size: int, **kwargs: Any) -> Capacity:
        """Computes a capacity for the minibatches of a data set, from one pass over it.

        The capacity has room for the `batch_size` largest samples, for the `batch_size` samples with the most nodes of
        each kind, and, with headroom, for samples spread over the data set. A step with plans made `like` this
        capacity should therefore compile once.

        Args:
            args: as for `plan`, with the whole data set in place of a minibatch.
            batch_size: the number of samples in a minibatch.

        Returns:
            A `Capacity`, for `plan(..., like=capacity)`.

        >>> from jitbatch import jitbatch
        >>> @jitbatch
        ... def area(scale, x):
        ...     return 3.25 * scale * x * x
        >>> total = jitbatch(lambda scale, xs: sum(area(scale, x) for x in xs))
        >>> print(total.capacity(2.0, [(1.0, 2.0), (3.0,), (4.0, 5.0, 6.0), (7.0,)], batch_size=2))
        room for 6 area, 2 sum (6 terms); 6 input rows
        """
        return self._planner.capacity(self._call(args, kwargs), batch_size)

    @unshadowed
    def plans(
        self, *args: Any, prefetch: int | None = None, like: Plan | Capacity | Literal["auto"] = "auto",
        differentiable: str | Sequence[str] | None = None, **kwargs: Any,
    ) -> Ahead[Plan]:  # fmt: skip
        """Plans a stream of minibatches, while the device runs earlier steps.

        Args:
            args: as for `plan`, with an iterable of minibatches in place of each mapped argument.
            prefetch: the number of plans to make ahead of time, in a thread. With 0 there is no thread, and each plan
                is made when the iterator is advanced. The default is 2, and 0 on a CPU: there, planning and the step
                compete for the same cores, and JAX's asynchronous dispatch already overlaps the two.
            like: as for `plan`. If it is a plan or a capacity, each later plan is made `like` the one before, so sizes
                only grow.
            differentiable: as for `plan`.

        Returns:
            An iterator of plans. Their arrays are on the device, unless it is a CPU. To stop early, close the iterator
            or use it as a context manager.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> total = jitbatch(lambda scale, xs: scale * sum(xs))
        >>> minibatches = [[(1.0, 2.0), (3.0,)], [(4.0, 5.0, 6.0), (7.0,)]]
        >>> [total.batch(2.0, plan).tolist() for plan in total.plans(2.0, minibatches)]
        [[6.0, 6.0], [30.0, 14.0]]
        """
        calls = each_call(self._signature, self._in_axes, self._is_method, args, kwargs)
        plans = plans_of(
            lambda call, like: self.plan(*call[0], like=like, differentiable=differentiable, **call[1]), calls, like
        )
        return Ahead(on_device(plans), prefetch)

    @unshadowed
    def explain(self, *args: Any, measure: bool = False, **kwargs: Any) -> Report:
        """Reports how a batch is executed: which calls run together, which batches stay small, and why.

        Args:
            args: as for `plan`, or the shared arguments and a `Plan`.
            measure: run the batch and each of its steps, and report measured instead of estimated times.

        Returns:
            A `Report`. It prints as a table.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> @jitbatch
        ... def norm(weights, xs):
        ...     return sum(jnp.sum(weights * x * x) for x in xs)
        >>> report = norm.explain(jnp.ones(2), [jnp.ones((3, 2)), jnp.ones((5, 2))])
        >>> [(cell.name, cell.calls, cell.distinct, cell.steps) for cell in report.cells]
        [('norm', 8, 1, 1), ('sum', 2, 2, 1)]
        """
        plan = find_plan(args, kwargs)
        misses = self.cache_info()["structures"].misses
        start = time.perf_counter()
        times = Times()
        if plan is None:
            plan = self.plan(*args, like=None, **kwargs)
            new = self.cache_info()["structures"].misses - misses
            times = Times(analysis=time.perf_counter() - start, new_structures=new)
            values = self._call(args, kwargs).arguments.shared
        else:
            values = self._shared_beside_plan(args, kwargs)
        shared = SharedArguments(values)
        plan = self._planner.ready(plan, shared)
        if not measure:
            return explain_plan(plan, times)
        shared.check_data(plan.static.call)
        compiling, running = time_run(lambda: execute(plan, shared.leaves))
        times = replace(times, compile=compiling, run=running)
        return explain_plan(plan, times, None if plan.static.types is None else time_steps(plan, shared.leaves))

    def explain_plan(self, plan: Plan) -> Report:
        """Returns the report of a plan of this function, as `plan.explain()` does."""
        return explain_plan(plan)

    @unshadowed
    def check(self, *args: Any, tolerance: float | None = None, **kwargs: Any) -> Check:
        """Compares the values and gradients of a batch with those of the plain loop. Use it in your own tests.

        The batch runs as `f.batch(shared, f.plan(shared, samples))`. The plain loop calls the undecorated function on
        one sample after the other: first with the arguments as passed, for the values, then again for the gradients.

        Args:
            args: as for `batch`.
            tolerance: the allowed difference, relative to the largest absolute value in the same array. The default is
                1e-4 for float32, 1e-9 for float64 and 5e-2 for shorter floats. The dtype is that of the result, or the
                shortest float in the computation if that is shorter. Integers, booleans and keys must be equal.

        Returns:
            A `Check` with the worst differences and their places. It prints as one line.

        Raises:
            AssertionError: the difference is too large. The message names the sample and the place in its result, or
                the parameter.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> @jitbatch
        ... def total(scale, tree):
        ...     return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree
        >>> print(total.check(jnp.float32(10), [(1, (2, 3)), 4]))
        total on 2 samples agrees with the plain loop: values equal; gradients equal
        """
        call = self._call(args, kwargs)
        arguments, shared = call.arguments, call.shared
        shared.check_data(arguments)
        plan = self._planner.plan(call, PlanRequest())

        def batched(leaves: Sequence[Any]) -> list[Any]:
            return results_of(plan, execute(plan, leaves))

        def loop(leaves: Sequence[Any] | None) -> list[Any]:
            results = []
            for sample_id, sample in enumerate(call.samples):
                objects = arguments.shared if leaves is None else shared.rebuild(leaves)
                positional, named = arguments.rebuild(objects, sample)
                try:
                    results.append(fun(*positional, **named))
                except Exception as error:
                    error.add_note(
                        f"jitbatch: raised by the plain loop, in a call with sample {sample_id} as it is; `.batch` "
                        "passes arrays in the place of Python numbers"
                    )
                    raise
            return results

        fun: Callable[..., Any] = self.__wrapped__
        types = plan.static.types
        jaxprs = [jax.make_jaxpr(loop)(shared.leaves)] if types is None else [kind.cell for kind in types.kinds]
        shortest = shortest_float(closed.jaxpr for closed in jaxprs)
        return check(
            describe_source(fun)[0], batched, loop, shared.leaves, shared_names(shared.key, arguments), tolerance,
            shortest,
        )  # fmt: skip

    @unshadowed
    def serve(
        self, *shared: Any, max_batch_size: int = 64, max_waiting: int = 1024, max_delay: float = 0.0,
        batch_size_fn: Callable[[list[Any]], int] | None = None, **named: Any,
    ) -> Server:  # fmt: skip
        """Makes a server that answers requests for single samples, in batches; see `Server`.

        Args:
            shared, named: the shared arguments. Each request has the others.
            max_batch_size: the largest number of samples that run together.
            max_waiting: the number of requests that may wait. One more is refused with `Overloaded`.
            max_delay: the number of seconds that a request waits for others to join, while the device is free. By
                default it does not wait: while one batch runs, the next one gathers.
            batch_size_fn: the size of a list of samples, such as its number of nodes. `max_batch_size` is then the
                largest size of a batch, in the same unit. A sample that is larger runs alone.

        Returns:
            A `Server`. Close it, or use it in a `with` or `async with` statement.

        >>> from jitbatch import jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> with double.serve(2.0) as server:
        ...     float(server.submit(3.0).result())
        6.0
        """
        limits = Limits(max_batch_size, max_waiting, max_delay, batch_size_fn)
        name = describe_function(self.__wrapped__)
        arguments = ServedArguments(name, self._sample_signature, self._in_axes, self._is_method)
        return Server(arguments, self._runner(arguments, arguments.shared(shared, named), limits), limits)

    def _runner(self, arguments: ServedArguments, shared: Shared, limits: Limits) -> Runner:
        return WholeBatches(self._planner.for_serving(), arguments, shared, limits.most)

    @unshadowed
    def cache_info(self) -> dict[str, CacheInfo]:
        """Returns the hits and misses of this function's caches.

        The keys are `"structures"` (recorded samples), `"subgraphs"` (recorded calls), `"programs"` (compiled programs
        of the per-sample executor) and `"rooms"` (sizes shared by plans).

        >>> from jitbatch import jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> _ = double.batch(2.0, [1.0, 2.0, 3.0])
        >>> double.cache_info()["structures"]
        CacheInfo(hits=2, misses=1, maxsize=16384, currsize=1)
        """
        return self._planner.contexts.cache_info()

    # Helpers

    @functools.cached_property
    def _attributes(self) -> dict[str, Any]:
        """The attributes of the function that a bound method shows, such as its name and docstring."""
        names = (name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(self.__wrapped__, name))
        return {**vars(self.__wrapped__), **{name: getattr(self.__wrapped__, name) for name in names}}

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    @property
    def _sample_signature(self) -> inspect.Signature:
        """The arguments of the function as its author wrote it."""
        return self._signature

    @functools.cached_property
    def _call_forms(self) -> CallForms:
        return CallForms(self._signature, self._in_axes, self._is_method)

    @property
    def _options(self) -> Options:
        return self._planner.options

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return self._planner.call(self._call_forms.take_apart(args, kwargs))

    def _shared_beside_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        shared = shared_arguments(self._signature, self._in_axes, self._is_method, args, kwargs)
        if any(isinstance(part, Plan) for part in shared):
            raise ArgumentError(
                f"a plan is given in place of a shared argument of {describe_function(self.__wrapped__)}: it stands in "
                f"the place of the first mapped one of {self._signature}"
            )
        return shared


def _found_by_name(module: str, name: str) -> Any:
    """Returns the object that `pickle` finds under this name, or None."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def find_plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
    return next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, Plan)), None)
