"""`AsyncBatched`: a decorated coroutine function, whose samples need values."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from jitbatch.ir.cell import Identity
from jitbatch.methods.batched import Batched, find_plan
from jitbatch.plan.eager import on_grid
from jitbatch.plan.recorded import Call
from jitbatch.record.call_forms import CallForms
from jitbatch.record.decisions import Decisions, Realised
from jitbatch.record.rows import ClosesOverTracer
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.rollout.engine import Engine
from jitbatch.rollout.flight import Flight
from jitbatch.rollout.rollout import MOST_IN_FLIGHT, Rollout, outputs_together, roll_out
from jitbatch.serve.arguments import ServedArguments, Shared
from jitbatch.serve.in_flight import InFlight
from jitbatch.serve.limits import Limits
from jitbatch.serve.worker import Runner
from jitbatch.step.samples import current_step
from jitbatch.util.caches import Cache
from jitbatch.util.compat import is_compiling, is_tracer, primal_of
from jitbatch.util.errors import DecisionError
from jitbatch.util.sites import describe_function
from jitbatch.util.wrapped import unshadowed

P = ParamSpec("P")
R = TypeVar("R")


class AsyncBatched(Batched[P, R]):
    """An asynchronous function decorated by `jitbatch`. Its samples can ask for values.

    Methods that need the structure of a sample beforehand take the decisions of a rollout as the additional argument
    `decisions`. A call of `.batch` without decisions rolls the samples out.
    """

    def __init__(self, fun: Callable[P, R], *options: Any):
        super().__init__(Realised(fun), *options)
        self._engines = Cache(16)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @unshadowed
    def batch(self, *args: Any, **kwargs: Any) -> Any:
        """Maps the function over samples; see `Batched.batch`. Without `decisions`, the samples are rolled out.

        Inside of a differentiation, the samples are first rolled out on their values. Then the resulting program is
        differentiated. No gradient passes through an answer.
        """
        if "decisions" in kwargs or find_plan(args, kwargs) is not None:
            return super().batch(*args, **kwargs)
        call = self._call_alone(args, kwargs)
        if not call.samples:
            return super().batch(*args, **kwargs, decisions=Decisions(()))
        if current_step() is not None or is_compiling():
            raise self._missing("inside of a jit")
        leaves = [*call.shared.leaves, *jax.tree.leaves(call.samples)]
        if not any(map(is_tracer, leaves)):
            return self._rolled_out(call, args, kwargs).outputs
        if any(is_tracer(primal_of(leaf)) for leaf in leaves):
            raise self._missing("inside of jax.vmap or another transformation")
        run = self._rolled_out(call, args, kwargs, primal_of)
        return super().batch(*args, **kwargs, decisions=run.decisions)

    @unshadowed
    def rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        """Runs samples that ask for values.

        Each sample runs until it awaits `jitbatch.value`. Then the values for all samples are computed in one batch,
        the samples get their answers, and continue.

        Args:
            args: as for `batch`.

        Returns:
            A `Rollout`: the outputs in the form of `.batch`, the decisions, the number of syncs, and times.

        >>> import jitbatch
        >>> @jitbatch.jitbatch
        ... async def collatz(one, n):
        ...     steps = 0 * one
        ...     while await jitbatch.value(n != 1):
        ...         n, steps = (3 * n + 1 if await jitbatch.value(n % 2) else n // 2), steps + one
        ...     return steps
        >>> run = collatz.rollout(1, [6, 7, 1])
        >>> run.outputs.tolist(), run.syncs
        ([8, 16, 0], 34)
        >>> collatz.batch(1, [6, 7, 1], decisions=run.decisions).tolist()
        [8, 16, 0]
        """
        return self._rolled_out(self._call_alone(args, kwargs), args, kwargs)

    def flight(self, *args: Any, room: int, **kwargs: Any) -> Flight:
        """Returns a `Flight`, to which samples can be added at any time.

        Args:
            args: as for `batch`; mapped arguments may be empty lists.
            room: the number of samples that may be in flight at the same time.
        """
        return self._flight(self._call_alone(args, kwargs), args, kwargs, room)

    def _flight(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], room: int) -> Flight:
        full = self._call_forms.take_apart(args, {**kwargs, "decisions": ()})
        names = [part.name for part in full.mapped]
        context = self._planner.context_of(Call(full, call.shared))
        engine = self._engines.get_or_make(Identity(context), lambda: Engine(context, names))
        return Flight(engine, self.__wrapped__, call.shared, call.arguments, room)  # type: ignore[arg-type]

    def _rolled_out(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], concrete: Callable[[Any], Any] | None = None
    ) -> Rollout:
        """Rolls out samples; `concrete` gives the values of leaves."""
        shared, samples = call.shared, call.samples
        shared.check_data(call.arguments)
        if concrete is not None:
            shared = SharedArguments(shared.rebuild(list(map(concrete, shared.leaves))))
            samples = jax.tree.map(concrete, samples)
        flight = self._flight(Call(call.arguments, shared), args, kwargs, min(on_grid(len(samples)), MOST_IN_FLIGHT))
        try:
            tickets = roll_out(flight, samples)
        except ClosesOverTracer:
            raise self._missing("inside of a transformation of a value that it closes over") from None
        finally:
            flight.close()
        if not tickets:
            return Rollout(self.batch(*args, **kwargs), 0, flight.times, [])
        outputs = outputs_together(tickets, flight.context, self._options.out)
        return Rollout(outputs, flight.times.syncs, flight.times, tickets)

    def _call_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The arguments of a rollout, which has no decisions."""
        return self._planner.call(self._forms_alone.take_apart(args, kwargs))

    @functools.cached_property
    def _forms_alone(self) -> CallForms:
        return CallForms(self._sample_signature, self._in_axes, self._is_method)

    @property
    def _sample_signature(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__.asynchronous)  # type: ignore[attr-defined]

    def _runner(self, arguments: ServedArguments, shared: Shared, limits: Limits) -> Runner:
        return InFlight(self.flight, arguments, shared, limits.most)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if kwargs.get("decisions") is None:
            raise self._missing("ahead of a run")
        return super()._call(args, kwargs)

    def _missing(self, where: str) -> DecisionError:
        return DecisionError(
            f"{describe_function(self.__wrapped__)} looks at values, so what its samples compute is not known {where}. "
            "Roll out first, and pass the decisions: `run = f.rollout(shared, samples)`, then "
            "`f.plan(shared, samples, decisions=run.decisions)`, or `f.batch(shared, samples, decisions=decisions)` in "
            "a step that has samples and decisions as arguments"
        )
