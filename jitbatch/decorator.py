"""The decorator `jitbatch`."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from jitbatch.execute.fused.targets import TARGETS
from jitbatch.execute.registry import EXECUTORS
from jitbatch.methods.asynchronous import AsyncBatched
from jitbatch.methods.batched import Batched
from jitbatch.schedule.policies import POLICIES
from jitbatch.util.errors import ArgumentError
from jitbatch.util.sites import describe_function

P = ParamSpec("P")
R = TypeVar("R")

GRANULARITIES = ("auto", "op", "subgraph", "graph")
LOOPS = ("auto", "dynamic", "static")
PLATFORMS = ("auto", *TARGETS)
OUTPUTS = ("stack", "list", "ragged")


@overload
def jitbatch(fun: Callable[P, R], /) -> Batched[P, R]: ...
@overload
def jitbatch(
    fun: None = None, /, *, in_axes: Any = None, granularity: str = "auto", policy: str = "auto",
    executor: str = "auto", dedupe: bool = True, out: str = "stack", loops: str = "auto",
    platform: str = "auto",
) -> Callable[[Callable[P, R]], Batched[P, R]]: ...  # fmt: skip
@overload
def jitbatch(
    fun: Callable[P, R], /, *, in_axes: Any = None, granularity: str = "auto", policy: str = "auto",
    executor: str = "auto", dedupe: bool = True, out: str = "stack", loops: str = "auto",
    platform: str = "auto",
) -> Batched[P, R]: ...  # fmt: skip
def jitbatch(
    fun: Any = None, /, *, in_axes: Any = None, granularity: str = "auto", policy: str = "auto", executor: str = "auto",
    dedupe: bool = True, out: str = "stack", loops: str = "auto",
    platform: str = "auto",
) -> Any:  # fmt: skip
    """`vmap` for samples of different shapes and structures.

    Decorate a function of one sample. A plain call of the decorated function runs it as before. `f.batch(...)` maps it
    over samples of any shapes, and runs equal subgraphs of all samples as one vmapped XLA operation. The subgraphs are
    calls of decorated functions and of your own `jax.jit` functions; operations between these calls are grouped
    automatically.

    Args:
        fun: the function or method of one sample.
        in_axes: as for `jax.vmap`: for each positional argument None (shared) or an axis (mapped). By default the first
            argument is shared and the others are mapped. On a method, `self` is shared and has no entry here.
        granularity: the unit of batching. `"op"`: single operations. `"subgraph"`: calls of decorated functions, and
            groups of operations between them. `"graph"`: whole samples of equal structure. `"auto"`: `"subgraph"`,
            until the cost model predicts that another granularity pays.
        policy: the order of execution. `"depth"`: level by level. `"agenda"`: lowest average level first. `"layers"`:
            the fewest steps where these can be computed, and never more than the other two. `"auto"`: `"layers"`, but
            it searches for fewer steps than its first schedule has only where the cost model predicts that this pays.
        executor: the way to run a batch. `"fused"`: a whole batch as one XLA program, which also runs other samples
            that fit its sizes. `"dispatch"`: one compiled call per step; it supports effects and every order of
            differentiation, including reverse mode of a derivative. `"per_sample"`: one jitted call per sample without
            batching, for samples that have nothing in common. `"auto"`: first `"fused"`, or `"dispatch"` where
            `.batch` is called on samples inside other transformations; later another executor, once the cost model
            predicts that it pays for its compilation.
        dedupe: whether calls with equal operands are computed once per batch.
        out: the form of the outputs. `"stack"`: stacked on axis 0. `"list"`: a list with one output per sample.
            `"ragged"`: a `Ragged`, for outputs that differ only in the number of equal items (scores of a sentence's
            words).
        loops: the trip counts of the fused executor's loops. `"dynamic"`: the rounds and chunks of the batch.
            `"static"`: all rounds and chunks of the capacity, each at the largest width, so that the device never
            waits for a trip count. `"auto"`: `"dynamic"` on every platform.
        platform: the platform that programs of the fused executor are made for: `"cpu"`, `"gpu"` or `"tpu"`. It decides
            the widths of chunks and where trip counts are read; a program runs on every platform. `"auto"`: the
            platform of the shared arguments, or of the default device if these are not bound to a device.

    Returns:
        The function, with the methods `.batch`, `.plan`, `.plans`, `.capacity`, `.explain`, `.check`, `.serve` and
        `.cache_info`.

    >>> import jax.numpy as jnp
    >>> from jitbatch import jitbatch
    >>> @jitbatch
    ... def norm(weights, xs):
    ...     return sum(jnp.sum(weights * x * x) for x in xs)
    >>> norm.batch(jnp.ones(2), [jnp.ones((3, 2)), jnp.ones((5, 2))]).tolist()
    [6.0, 10.0]
    """
    for name, value, allowed in (
        ("granularity", granularity, GRANULARITIES),
        ("policy", policy, tuple(POLICIES)),
        ("executor", executor, ("auto", *EXECUTORS)),
        ("out", out, OUTPUTS),
        ("loops", loops, LOOPS),
        ("platform", platform, PLATFORMS),
    ):
        if value not in allowed:
            raise ArgumentError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
    if not isinstance(dedupe, bool):
        raise ArgumentError(f"dedupe={dedupe!r} is not True or False")

    def decorate(fun: Callable[P, R]) -> Batched[P, R]:
        if isinstance(fun, Batched):
            raise ArgumentError(f"{fun!r} is decorated already; decorate its __wrapped__ to give other options")
        if isinstance(fun, staticmethod):
            return staticmethod(decorate(fun.__func__))  # type: ignore[return-value]
        if not callable(fun) or isinstance(fun, type):
            raise ArgumentError(f"jitbatch decorates functions, got {fun!r}")
        if inspect.isgeneratorfunction(fun) or inspect.isasyncgenfunction(fun):
            raise ArgumentError(
                f"{describe_function(fun)} is a generator function: jitbatch decorates functions that return arrays"
            )
        cls: Any = AsyncBatched if inspect.iscoroutinefunction(fun) else Batched
        return cls(fun, in_axes, granularity, policy, executor, dedupe, out, loops, platform)

    return decorate if fun is None else decorate(fun)
