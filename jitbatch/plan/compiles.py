"""Compilations and their causes: the difference between a plan and the plan that ran before it."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.sizes import grew
from jitbatch.plan.plan import Plan
from jitbatch.plan.static import PlanStatic
from jitbatch.util.errors import ArgumentError, CompileError
from jitbatch.util.sites import describe_function, users_stacklevel

logger = logging.getLogger("jitbatch")
logger.addHandler(logging.NullHandler())

_COMPILED = "/jax/core/compile/backend_compile_duration"
_ROOM = (
    "`f.capacity(shared, data_set, batch_size=n)` has room for all minibatches of a data set, as `like=` of plans; a "
    "`jitbatch.jit` step takes the `step.capacity` of an earlier run"
)
_SAME = "by a plan that was run before: an argument of the jitted function around it is new, or the function itself"

MANY_PROGRAMS = 3
"""A function warns at this number of programs: each takes seconds to compile."""

Run = tuple[PlanStatic, tuple[int, ...]]
"""The key of a compiled program: the static part of a plan, and the shape of its output rows (number of samples)."""


class RecompileWarning(UserWarning):
    """Warns that a function is compiled repeatedly."""


class _Watch:
    """Records the compilations in a block, each with its cause."""

    def __init__(self) -> None:
        self.cause = ""
        self.entries: list[str] = []

    def listen(self, event: str, duration_secs: float, **about: Any) -> None:
        if event == _COMPILED:
            name = about.get("fun_name", "a program")
            self.entries.append(f"{name}: {self.cause}" if self.cause else f"{name}")
            self.cause = ""  # only for this program: the next compilation may not belong to jitbatch


_watches: list[_Watch] = []


@contextmanager
def assert_max_compiles(n: int) -> Iterator[None]:
    """Fails if XLA compiles more than `n` programs in the block. Use it in your own tests.

    Args:
        n: the number of allowed compilations. Programs without jitbatch count too.

    Raises:
        AssertionError: there were more compilations. The message names each compiled program and its cause: a new
            cell type with its file and line, or a size that grew.

    >>> import jitbatch
    >>> double = jitbatch.jitbatch(lambda scale, x: scale * x)
    >>> first = double.plan(2.0, [1.0, 2.0, 3.0])
    >>> _ = double.batch(2.0, first)
    >>> with jitbatch.assert_max_compiles(0):
    ...     _ = double.batch(2.0, double.plan(2.0, [4.0, 4.0, 5.0], like=first))
    """
    if not isinstance(n, int) or n < 0:
        raise ArgumentError(f"assert_max_compiles takes a number of compilations, got {n!r}")
    watch = _Watch()
    _watches.append(watch)
    jax.monitoring.register_event_duration_secs_listener(watch.listen)
    try:
        yield
    finally:
        _watches.remove(watch)
        jax.monitoring.unregister_event_duration_listener(watch.listen)
    if len(watch.entries) > n:
        lines = "".join(f"\n  {place}. {entry}" for place, entry in enumerate(watch.entries, 1))
        raise CompileError(f"{len(watch.entries)} compilations, at most {n} allowed:{lines}")


_is_trial: ContextVar[bool] = ContextVar("is_trial", default=False)


@contextmanager
def trial() -> Iterator[None]:
    """A context in which traced plans are not counted, because the trace is dropped and never compiled."""
    token = _is_trial.set(True)
    try:
        yield
    finally:
        _is_trial.reset(token)


def note_run(plan: Plan) -> None:
    """Stores that a plan is about to be run or traced, and logs the cause if it needs a new program."""
    if _is_trial.get():
        return
    static = plan.static
    run = (static, np.shape(plan.out_rows[0]) if plan.out_rows else ())
    causes = static.tables.causes
    known = causes.get(run)
    if known is None:
        cause = causes.put(run, _describe(static.owner._last_run, run))
        logger.info("%s", cause)
        if EXECUTORS[static.executor].has_room and static.out != "rows":
            _count_program(static.owner, cause)
    else:
        cause = _SAME
    if not static.tables.holds_tracers:
        static.owner._last_run = run
    for watch in _watches:
        watch.cause = cause


def _count_program(owner: Any, cause: str) -> None:
    owner._programs_run += 1
    if owner._programs_run == MANY_PROGRAMS:
        warnings.warn(
            f"{describe_function(owner.__wrapped__)} is compiled for the third time: {cause}. Compiling takes longer "
            "than many steps. The logger `jitbatch` tells at level INFO of each compilation what it is for",
            RecompileWarning,
            stacklevel=users_stacklevel(),
        )


def _describe(before: Run | None, now: Run) -> str:
    if before is not None and before[0] == now[0]:
        return (
            f"another plan of {describe_function(now[0].owner.__wrapped__)}: the number of samples, or of items, "
            f"was {_number(before[1])} and is {_number(now[1])}. Give all minibatches as many, or fill them up: "
            "jitbatch.jit(pad=n)"
        )
    return describe_change(before and before[0], now[0])


def _number(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 0


def describe_change(before: PlanStatic | None, now: PlanStatic) -> str:
    """Describes the differences of a plan from the one before."""
    name = describe_function(now.owner.__wrapped__)
    if before is None:
        return f"the first plan of {name}"
    changes = list(_changes(before, now))
    return f"a new plan of {name}: {'; '.join(changes) or 'its static part differs'}"


def _changes(before: PlanStatic, now: PlanStatic) -> Iterator[str]:
    if before.shared_key != now.shared_key:
        yield "the shared arguments have another structure, or other shapes or dtypes"
        return
    if before.tables is not now.tables:
        yield "settings of JAX differ, or its caches were cleared"
        return
    if before.executor != now.executor:
        yield f"the executor was {before.executor} and is {now.executor}"
        return
    if before.out_trees != now.out_trees:
        yield "results have another structure"
    if now.types is None or before.types is None:
        yield "samples have other structures, each of which is a program of its own"
        return
    sources, kinds = now.tables.sources, now.tables.kinds
    new = set(now.types.profile.kinds) - set(before.types.profile.kinds)
    named = dict.fromkeys(sources.of(kinds[kind_id].cell)[:2] for kind_id in sorted(new))
    yield from (f"new cell type `{cell}` at {where}" for cell, where in named)
    grown = list(_sizes(before, now))
    yield from grown
    if grown and not named:
        yield _ROOM


def _sizes(before: PlanStatic, now: PlanStatic) -> Iterator[str]:
    yield from now.program.changes(before.program, now.tables)
    if now.program.sizes is not None:  # `changes` above reports sizes by cell
        return
    rows = {arena.value_class: arena.capacity for arena in before.arenas}
    for arena in now.arenas:
        was = rows.get(arena.value_class, arena.capacity)
        if was != arena.capacity:
            yield f"rows of {now.tables.classes[arena.value_class]} {grew(was, arena.capacity)}"
