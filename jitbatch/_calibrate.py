"""Fitting the cost model to the running backend."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch._api import Batched, jitbatch
from jitbatch._cost import Costs
from jitbatch._known import store_costs
from jitbatch._schedule import Problem, agenda

_lengths = itertools.count(64)
"""Lengths of samples, each used once, so that structures are new."""


def calibrate() -> Costs:
    """Measure what things cost on the running backend, for everything that `"auto"` decides.

    It takes a second or two. The result is kept, also for later processes, in `$JITBATCH_CACHE_DIR` or else the user's
    cache directory. Nothing calibrates by itself: until this is called, defaults for the kind of backend are used.

    Returns:
        The `Costs`, in seconds; print them to read them.

    >>> import jitbatch
    >>> costs = jitbatch.calibrate()
    >>> costs.call < costs.program  # compiling takes longer than calling
    True
    """
    call, operation, program, equation = _calls()
    plan, node, record, step = _planning()
    costs = Costs(
        call=call,
        step=step,
        launch=_launch(call),
        operation=operation,
        flop=_flop(call),
        byte=_byte(call),
        plan=plan,
        node=node,
        record=record,
        search=_search(),
        program=program,
        equation=equation,
    )
    store_costs(costs)
    return costs


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def _median(run: Callable[[], Any], times: int = 9) -> float:
    jax.block_until_ready(run())
    return statistics.median(_seconds(run) for _ in range(times))


def _positive(seconds: float) -> float:
    """A difference of two times may come out below zero where something else ran meanwhile."""
    return max(seconds, 1e-12)


def _calls() -> tuple[float, float, float, float]:
    """A call of a program, and each equation of it; compiling one, and each equation of it."""

    def chain(length: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(length):
                x = jnp.tanh(x @ x)
            return x

        return jax.jit(run)

    few, many, x = 2, 18, jnp.ones((8, 8))
    more = 2 * (many - few)
    short, long = chain(few), chain(many)
    one, other = _seconds(lambda: short(x)), _seconds(lambda: long(x))
    equation = _positive((other - one) / more)
    call, longer = _median(lambda: short(x), 30), _median(lambda: long(x), 30)
    return call, _positive((longer - call) / more), _positive(one - 2 * few * equation), equation


def _flop(call: float) -> float:
    rows, x, repeats = 64, jnp.ones((256, 256)), 4

    @jax.jit
    def products(y: Any) -> Any:
        for _ in range(repeats):
            y = y @ x
        return y

    y = jnp.ones((rows, len(x)))
    return _positive(_median(lambda: products(y)) - call) / (2 * repeats * rows * x.size)


def _byte(call: float) -> float:
    x = jnp.ones(1 << 20)
    add = jax.jit(lambda x: x + 1)
    return _positive(_median(lambda: add(x)) - call) / (2 * x.nbytes)


def _launch(call: float) -> float:
    """A turn of a loop with a small cell: rows are gathered, multiplied, and written."""
    arena, weights, trips, width = jnp.ones((1024, 8)), jnp.ones((8, 8)) / 8, 500, 8

    def turn(number: Any, arena: Any) -> Any:
        left, right = arena[number + jnp.arange(width)], arena[number + jnp.arange(width, 2 * width)]
        return lax.dynamic_update_slice(arena, jnp.tanh(left @ weights + right), (512 + number, 0))

    loop = jax.jit(lambda arena, trips: lax.fori_loop(0, trips, turn, arena))
    return _positive(_median(lambda: loop(arena, trips)) - call) / trips


def _chains(executor: str) -> Batched[..., Any]:
    cell = jitbatch(lambda shared, x, y: jnp.tanh(shared * x + y))

    def chain(shared: Any, xs: list[Any]) -> Any:
        y = shared
        for x in xs:
            y = cell(shared, x, y)
        return y

    return jitbatch(chain, executor=executor, dedupe=False)


def _planning() -> tuple[float, float, float, float]:
    """Planning a batch, a node of a known structure, one of a new structure, and a step that is dispatched."""
    chain, shared, length, many = _chains("fused"), jnp.float32(0.5), 16, 32
    one = [[float(number) for number in range(length)]]
    small = _median(lambda: chain.plan(shared, one).counts)
    large = _median(lambda: chain.plan(shared, one * many).counts)
    node = _positive((large - small) / ((many - 1) * length))
    new = next(_lengths)
    record = _positive(_seconds(lambda: chain.plan(shared, [[1.0] * new]).counts) - small) / new
    plan = _positive(small - length * node)
    dispatched = _chains("dispatch")
    step = _positive(_median(lambda: dispatched.batch(shared, one)) - plan - length * node) / length
    return plan, node, record, step


def _search() -> float:
    """A step of the agenda policy, on two types in turn."""
    nodes = np.arange(64)
    problem = Problem(nodes % 2, nodes, nodes[1:], nodes[:-1])
    return _median(lambda: agenda(problem)) / len(nodes)
