"""Sums of any number of terms: one type for every number, and the values of the operations they were written as."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.ir.cell import ReductionCell
from jitbatch.ir.graph import Graph

H = 2
W = {"w": jnp.float32([[0.3, -0.2], [0.5, 0.4]]), "b": jnp.float32([0.1, -0.2]), "s": jnp.float32(0.7)}
EVERY = [(granularity, executor) for granularity in ("op", "subgraph") for executor in ("fused", "dispatch")]


def vectors(count: int, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed + count).normal(size=(count, H)).astype(np.float32))


LOW_PRECISION = 2.0**-7  # one unit in the last place of bfloat16

SAMPLES = [vectors(n) for n in (1, 3, 2)]


def assert_batches(
    fun: Any, samples: list[Any] = SAMPLES, options: Any = EVERY, rtol: float = 1e-4, params: Any = W
) -> None:
    """Values and gradients are those of the plain loop."""
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), params, samples, True, transform=jax.jit)
    for granularity, executor in options:
        batched = jitbatch(fun, granularity=granularity, executor=executor)
        assert_same(gradients(batched.batch, params, samples, True, transform=jax.jit), want, rtol=rtol, atol=rtol)


def graph_of(fun: Any, sample: Any, params: Any = W, **options: Any) -> Graph:
    batched = jitbatch(fun, **options)
    batched.plan(params, [sample])
    (context,) = batched._planner.contexts
    (graph,) = context.graphs
    return graph


def kinds_of(fun: Any, sample: Any, params: Any = W, **options: Any) -> set[Any]:
    graph = graph_of(fun, sample, params, **options)
    return {graph.tables.kinds[kind].cell.key for kind in graph.kind}


def arities(graph: Graph) -> list[int]:
    """How many terms each sum of a graph has."""
    is_sum = [isinstance(graph.tables.kinds[kind].cell, ReductionCell) for kind in graph.kind]
    return sorted(np.diff(graph.operand_start)[is_sum].tolist())


# --- The number of terms is no part of a type


def term(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"])


def python_sum(p: Any, xs: Any) -> Any:
    return sum(term(p, x) for x in xs)


def sum_with_a_start(p: Any, xs: Any) -> Any:
    return sum([term(p, x) for x in xs], p["b"])


def sum_from_zeros(p: Any, xs: Any) -> Any:
    return sum([term(p, x) for x in xs], jnp.zeros(H))


def reduced(p: Any, xs: Any) -> Any:
    return functools.reduce(operator.add, [term(p, x) for x in xs], jnp.zeros(H))


def accumulated(p: Any, xs: Any) -> Any:
    total = p["b"]
    for x in xs:
        total = total + term(p, x)
    return total


def accumulated_from_zeros(p: Any, xs: Any) -> Any:
    total = jnp.zeros(H)
    for x in xs:
        total += term(p, x)
    return total


def accumulated_from_the_other_side(p: Any, xs: Any) -> Any:
    total = p["b"]
    for x in xs:
        total = term(p, x) + total
    return total


def stack_sum(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x) for x in xs]).sum(0)


def stack_sum_of_another_axis(p: Any, xs: Any) -> Any:
    return jnp.sum(jnp.stack([term(p, x) for x in xs], axis=1), axis=-1)


def stack_mean(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x) for x in xs]).mean(0)


def mean_that_keeps_its_axis(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x) for x in xs]).mean(0, keepdims=True)


def stack_max(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x) for x in xs]).max(0)


def stack_min(p: Any, xs: Any) -> Any:
    return jnp.min(jnp.stack([term(p, x) for x in xs]), axis=0)


def sum_of_scalars(p: Any, xs: Any) -> Any:
    return sum(term(p, x) @ p["b"] for x in xs)


def stack_of_scalars(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x).sum() for x in xs]).sum()


def sum_in_between(p: Any, xs: Any) -> Any:
    """What comes before a sum, what every term reads, and what comes after."""
    common = jnp.sin(xs[0] @ p["w"])
    return jnp.tanh(sum(jax.nn.sigmoid(common + x @ p["w"]) * x for x in xs) @ p["w"])


def short_floats(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x).astype(jnp.bfloat16) for x in xs]).mean(0)


def bools(p: Any, xs: Any) -> Any:
    return jnp.stack([term(p, x) > 0 for x in xs]).sum(0)


def several_of_one_stack(p: Any, xs: Any) -> Any:
    stacked = jnp.stack([term(p, x) for x in xs])
    return stacked.sum(0), stacked.max(0), stacked.mean(0), stacked.min(0) * stacked.sum(0)


def several_of_a_stack_of_short_integers(p: Any, xs: Any) -> Any:
    stacked = jnp.stack([(10 * x).astype(jnp.int8) for x in xs])
    return stacked.sum(0), stacked.max(0)


def short_term(p: Any, x: Any) -> Any:
    return term(p, x).astype(jnp.bfloat16)


def short_sum_from_zeros(p: Any, xs: Any) -> Any:
    return sum([short_term(p, x) for x in xs], jnp.zeros(H))


def short_sum_from_a_scalar(p: Any, xs: Any) -> Any:
    return sum([short_term(p, x) for x in xs], jnp.float32(0))


def short_losses(p: Any, xs: Any) -> Any:
    return sum([short_term(p, x).sum() for x in xs], np.float32(0))


def short_sum_in_a_loop(p: Any, xs: Any) -> Any:
    total = jnp.zeros(H)
    for x in xs:
        total += short_term(p, x)
    return total


def short_sum_from_the_other_side(p: Any, xs: Any) -> Any:
    total = jnp.zeros(H)
    for x in xs:
        total = short_term(p, x) + total
    return total


def counted(p: Any, xs: Any) -> Any:
    return sum([x > 0 for x in xs], jnp.float32(0)) * p["b"]


def short_stack_widened(p: Any, xs: Any) -> Any:
    stacked = jnp.stack([short_term(p, x) for x in xs]).astype(jnp.float32)
    return stacked.sum(0), stacked.max(0)


@jitbatch
def short_cell(p: Any, x: Any, children: list[Any]) -> Any:
    return jnp.tanh(x @ p["w"] + sum(children, jnp.zeros(H))).astype(jnp.bfloat16)


def short_children(p: Any, xs: Any) -> Any:
    return short_cell(p, xs[0], [short_cell(p, x, []) for x in xs])


SHORT_TERMS: list[Callable[[Any, Any], Any]] = [
    short_sum_from_zeros, short_sum_from_a_scalar, short_losses, short_sum_in_a_loop, short_sum_from_the_other_side,
    counted, short_stack_widened, short_children,
]  # fmt: skip
"""Terms of another dtype than their sum."""

REDUCTIONS: list[Callable[[Any, Any], Any]] = [
    python_sum, sum_from_zeros, reduced, accumulated_from_zeros, stack_sum, stack_sum_of_another_axis,
    stack_mean, mean_that_keeps_its_axis, stack_max, stack_min, sum_of_scalars, stack_of_scalars, sum_in_between,
    short_floats, bools, several_of_one_stack, several_of_a_stack_of_short_integers,
]  # fmt: skip


@pytest.mark.parametrize("granularity", ["op", "subgraph"])
@pytest.mark.parametrize("fun", [*REDUCTIONS, *SHORT_TERMS], ids=lambda fun: fun.__name__)
def test_the_types_do_not_depend_on_the_number_of_terms(fun: Any, granularity: Any) -> None:
    kinds = [kinds_of(fun, vectors(n), granularity=granularity) for n in (1, 2, 3, 7)]
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]
    samples = [vectors(n) for n in (1, 2, 7)]
    alone, together = (jitbatch(fun).plan(W, s).summary.types for s in (samples[-1:], samples))
    assert alone == together


STARTED = [accumulated, accumulated_from_the_other_side, sum_with_a_start]


@pytest.mark.parametrize("fun", STARTED, ids=lambda fun: fun.__name__)
def test_a_loop_that_adds_to_a_start_is_a_sum_from_its_second_turn(fun: Any) -> None:
    # One addition to something that is not zero is arithmetic: nothing says that there could be more.
    kinds = [kinds_of(fun, vectors(n)) for n in (2, 3, 7)]
    assert kinds[0] == kinds[1] == kinds[2]
    assert arities(graph_of(fun, vectors(7))) == [8]


@pytest.mark.parametrize(
    "fun", [python_sum, accumulated, stack_sum, stack_sum_of_another_axis, stack_mean], ids=lambda fun: fun.__name__
)
def test_there_is_one_sum_of_all_terms(fun: Any) -> None:
    starts = fun is accumulated
    assert arities(graph_of(fun, vectors(6))) == [6 + starts]


@pytest.mark.parametrize("options", EVERY, ids="-".join)
def test_values_and_gradients(options: Any) -> None:
    def every(p: Any, xs: Any) -> Any:
        return [fun(p, xs) for fun in (*REDUCTIONS, *STARTED) if fun != short_floats]

    assert_batches(every, SAMPLES[:2], options=[options])


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
@pytest.mark.parametrize("fun", SHORT_TERMS, ids=lambda fun: fun.__name__)
def test_values_and_gradients_of_sums_of_short_terms(fun: Any, executor: Any) -> None:
    params = {"w": W["w"], "b": W["b"]}
    batched = jitbatch(fun, executor=executor).batch
    got, want = (
        gradients(lambda p, s: jax.tree.map(jnp.float32, run(p, s)), params, SAMPLES, transform=jax.jit)  # noqa: B023
        for run in (batched, lambda p, s: stack([fun(p, xs) for xs in s]))
    )
    assert_same(got, want, rtol=LOW_PRECISION, atol=LOW_PRECISION)


def test_a_sum_has_the_dtype_that_the_loop_computes_in() -> None:
    """256 + 1 is 256 in bfloat16: a chain rounds while it is short, and no more once it is promoted."""
    short = [jnp.bfloat16(x) for x in (256, 1, 1, 1)]

    def from_float32(p: Any, xs: Any) -> Any:
        return sum(xs, p)

    def promotes_on_the_way(p: Any, xs: Any) -> Any:
        total = xs[0]
        for x in (xs[1], p, *xs[2:]):
            total = total + x
        return total

    for granularity, executor in EVERY:
        for fun in (from_float32, promotes_on_the_way):
            got = jitbatch(fun, granularity=granularity, executor=executor).batch(jnp.float32(0.5), [short])
            want = fun(jnp.float32(0.5), short)
            assert got.dtype == want.dtype == jnp.float32
            assert got[0] == want


def test_a_stack_of_which_something_reads_another_dtype_is_a_stack() -> None:
    def fun(p: Any, xs: Any) -> Any:
        stacked = jnp.stack([short_term(p, x) for x in xs])
        return stacked.astype(jnp.float32).sum(0) + jnp.cumsum(stacked, 0)[-1]

    assert arities(graph_of(fun, vectors(3))) == []


# --- What is not flattened


def additions(fun: Any, count: int, **options: Any) -> tuple[int, list[int]]:
    """How many operands all nodes have together, and the sums."""
    graph = graph_of(fun, vectors(count), granularity="op", **options)
    return len(graph.operands), arities(graph)


def running_totals(p: Any, xs: Any) -> Any:
    total, seen = p["b"], []
    for x in xs:
        total = total + x
        seen.append(jnp.sin(total))
    return jnp.stack(seen)


@pytest.mark.parametrize("start", [0, 0.0, -0.0, False, jnp.float32(0)], ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, None], ids=str)
def test_totals_of_numbers_from_python_s_zero(start: Any, dtype: Any) -> None:
    """What a total begins with has no type of its own; `None` are weakly typed terms, as Python's numbers are."""

    def added(p: Any, xs: Any) -> Any:
        terms = xs if dtype is None else [x.astype(dtype) for x in xs]
        return sum(terms, start) * (start + terms[0])  # the second is no sum of any length

    rows = [-0.0], [1.5, -2.5], [3.0, 1.0, 2.0]
    samples = [[x if dtype is None else np.float32(x) for x in xs] for xs in rows]
    want = [added(W, list(map(jnp.asarray, xs))) for xs in samples]
    for granularity, executor in EVERY:
        got = jitbatch(added, granularity=granularity, executor=executor, out="list").batch(W, samples)
        assert [one.dtype for one in got] == [one.dtype for one in want]
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


def test_a_total_of_numbers_is_one_sum_from_python_s_zero() -> None:
    def added(p: Any, xs: Any) -> Any:
        return sum(p["s"] * x[0] for x in xs)

    assert arities(graph_of(added, vectors(3))) == [3]
    assert_batches(added)


def test_running_totals_stay_linear() -> None:
    (few, some), (many, none) = additions(running_totals, 4), additions(running_totals, 8)
    assert some == none == []
    assert many <= 2 * few + 1


def test_a_total_that_is_read_every_other_time_stays_linear() -> None:
    def fun(p: Any, xs: Any) -> Any:
        total, seen = p["b"], []
        for i, x in enumerate(xs):
            total = total + x
            if i % 2:
                seen.append(jnp.sin(total))
        return jnp.stack(seen)

    (few, _), (many, sums) = additions(fun, 8), additions(fun, 16)
    assert sum(sums) <= 3 * 16 / 2
    assert many <= 2 * few + 1


def test_a_total_that_is_returned_on_the_way_is_not_absorbed() -> None:
    def fun(p: Any, xs: Any) -> Any:
        total, first = jnp.zeros(H), None
        for x in xs:
            total = total + x
            first = total if first is None else first
        return first, total * p["b"]

    assert_batches(fun, options=EVERY[2:])
    assert sum(additions(fun, 6)[1]) <= 7


@pytest.mark.parametrize(
    "use",
    [
        lambda s: jnp.cumsum(s, 0)[-1], lambda s: s.sum(1).sum(), lambda s: s[0], lambda s: (s > 0).any(0), lambda s: s,
        jitbatch(lambda s: jnp.cumsum(s, 0)),
    ],
)  # fmt: skip
def test_a_stack_that_something_else_reads_is_a_stack(use: Any) -> None:
    def fun(p: Any, xs: Any) -> Any:
        stacked = jnp.stack([term(p, x) for x in xs])
        return stacked.sum(0), stacked.max(0), use(stacked)

    assert arities(graph_of(fun, vectors(3))) == []
    same_length = [vectors(3, seed) for seed in range(2)]
    assert_batches(lambda p, xs: sum(jnp.sum(one) for one in fun(p, xs)), same_length, EVERY[2:])


def test_a_stack_of_bools_is_reduced_as_one() -> None:
    """Of which there are sums, and no maxima two by two."""

    def fun(p: Any, xs: Any) -> Any:
        stacked = jnp.stack([x > 0 for x in xs])
        return stacked.sum(0), stacked.max(0)

    assert arities(graph_of(fun, vectors(3))) == []
    assert_same(jitbatch(fun).batch(W, SAMPLES), stack([fun(W, xs) for xs in SAMPLES]))


@pytest.mark.parametrize(
    "fun",
    [
        lambda p, xs: functools.reduce(operator.add, [x > 0 for x in xs]),
        lambda p, xs: sum([x > 0 for x in xs], xs[0] < 0),
    ],
)
def test_bools_are_not_added_up(fun: Any) -> None:
    assert arities(graph_of(fun, vectors(4))) == []
    assert_same(jitbatch(fun).batch(W, SAMPLES), stack([fun(W, xs) for xs in SAMPLES]))


def test_only_terms_of_one_shape_are_flattened() -> None:
    def fun(p: Any, xs: Any) -> Any:
        total = p["s"]
        for x in xs:
            total = total + x  # the first addition broadcasts
        return total

    assert arities(graph_of(fun, vectors(5))) == [5]
    assert_batches(fun, options=EVERY[2:])


def test_only_terms_of_one_dtype_are_flattened() -> None:
    def fun(p: Any, xs: Any) -> Any:
        total = (p["b"] * 3).astype(jnp.int32)
        for i, x in enumerate(xs):
            total = total + (x if i % 2 else (3 * x).astype(jnp.int32))
        return total

    assert_batches(fun, [vectors(n) for n in (2, 5, 3)], options=EVERY[2:])


def test_additions_of_a_cell_are_left_alone() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return xs[0] @ p["w"] + xs[-1] @ p["w"] + p["b"] + 1.0

    assert arities(graph_of(fun, vectors(3))) == []


# --- Values that a sum in another order, or of another type, would change


def test_short_types_are_summed_in_the_type_of_their_sum() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return {
            "bool": jnp.stack([x > 0 for x in xs]).sum(0),
            "int8": jnp.stack([jnp.full(H, 100, jnp.int8) + x.astype(jnp.int8) for x in xs]).sum(0),
            "uint8": jnp.stack([jnp.full(H, 200, jnp.uint8) + (x > 0) for x in xs]).sum(0),
            "mean of int32": jnp.stack([jnp.full(H, 2_000_000_000) + x.astype(jnp.int32) for x in xs]).mean(0),
            "mean of float16": jnp.stack([60000 + x.astype(jnp.float16) for x in xs]).mean(0),
            "float32 of float16": jnp.stack([60000 + x.astype(jnp.float16) for x in xs]).sum(0, dtype=jnp.float32),
            "float": jnp.stack([x @ p["w"] for x in xs]).sum(0),
        }

    assert_batches(fun, [vectors(n) for n in (1, 4, 3)], rtol=2e-3)


def test_integers_wrap_as_they_do_one_by_one() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return sum([jnp.full(H, 100, jnp.int8) + x.astype(jnp.int8) for x in xs]), sum(xs) * p["b"]

    assert_batches(fun, options=EVERY[2:])


def test_short_floats_are_accumulated_in_float32() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return sum([x.astype(jnp.bfloat16) for x in xs])

    ones = [[np.ones(H, np.float32)] * 300]  # one by one, bfloat16 stops at 256
    for executor in ("fused", "dispatch"):
        assert_same(jitbatch(fun, executor=executor, dedupe=False).batch(W, ones), jnp.full((1, H), 300, jnp.bfloat16))


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_reassociation_is_within_rounding(executor: Any) -> None:
    """The error of a sum of n terms is at most n rounding errors of the sum of their magnitudes."""
    rng = np.random.default_rng(0)
    samples = [
        list((rng.normal(size=(n, H)) * 10.0 ** rng.integers(-3, 4, size=(n, 1))).astype(np.float32)) for n in (2, 40)
    ]
    got = jitbatch(lambda p, xs: sum(xs), executor=executor).batch(W, samples)
    for total, xs in zip(np.asarray(got), samples, strict=True):
        exact = np.sum(np.float64(xs), axis=0)
        assert np.all(np.abs(total - exact) <= len(xs) * 2.0**-24 * np.abs(np.float64(xs)).sum(0))


def test_not_a_number_and_infinity_stay_with_their_sum() -> None:
    samples = [[np.float32([np.inf, 1]), np.float32([1, 2])], [np.float32([3, np.nan])], [np.float32([1, 2])] * 3]
    for executor in ("fused", "dispatch"):
        for fun in (lambda p, xs: sum(xs), lambda p, xs: jnp.stack(xs).max(0), lambda p, xs: jnp.stack(xs).mean(0)):
            got = jitbatch(fun, executor=executor).batch(W, samples)
            assert_same(got, stack([fun(W, xs) for xs in samples]))


# --- Terms of every kind


def test_terms_that_are_shared_constant_or_equal() -> None:
    def fun(p: Any, xs: Any) -> Any:
        y = term(p, xs[0])
        return {
            "parameters": sum([p["b"]] * len(xs)),
            "parameters and rows": sum([p["b"], *xs, p["b"]]),
            "constants": sum([jnp.ones(H)] * len(xs)) * xs[0],
            "numbers": sum([2.0] * len(xs)),
            "constants and rows": jnp.stack([np.ones(H, np.float32), *xs]).mean(0),
            "one value": sum([y] * len(xs)),
            "one value twice": jnp.stack([y, *xs, y]).sum(0),
            "mean of parameters": jnp.stack([p["b"]] * len(xs)).mean(0),
            "max of parameters": jnp.stack([p["b"], p["w"][0], *xs]).max(0),
            "max of one value": jnp.stack([y] * len(xs)).max(0),
            "nested": sum(sum(jnp.tanh(x * z) for z in xs) for x in xs),
            "sum of means": sum(jnp.stack([x, y, z]).mean(0) for x in xs for z in xs),
            "max of sums": jnp.stack([sum([x, *xs]) for x in xs]).max(0),
            "started with a row": sum(xs[1:], xs[0]),
            "empty": sum([], p["b"]) * sum([]),
        }

    assert_batches(fun, SAMPLES[:2], options=EVERY[1:3])


def test_sums_of_losses_through_a_recursion_are_one_sum() -> None:
    def fun(p: Any, tree: Any) -> Any:
        def visit(t: Any) -> Any:
            if not isinstance(t, tuple):
                return t, (t * p["b"]).sum()
            (a, left), (b, right) = map(visit, t)
            h = jnp.tanh(a @ p["w"] + b)
            loss = (h * p["b"]).sum()
            return h, loss + left + right

        return visit(tree)[1]

    a, b, c, d = vectors(4)
    assert arities(graph_of(fun, ((a, b), (c, (d, a))))) == [9]
    assert_batches(fun, [a, (a, b), ((a, b), (c, (d, a)))], options=EVERY[2:])
    # An addition is the same in all places of a tree, whether its operands are leaves or not.
    left, right = (((a, b), c), d), (a, (b, (c, d)))
    graphs = [graph_of(fun, tree) for tree in (left, (left, right), (right, left), (d, left))]
    bodies = [{graph.tables.kinds[kind].cell.body for kind in graph.kind} for graph in graphs]
    assert bodies[0] == bodies[1] == bodies[2] == bodies[3]


# --- Only additions are additions


@functools.partial(jax.jit, inline=True)
def doubled(a: Any, b: Any) -> Any:
    return a + a


@functools.partial(jax.jit, inline=True)
def added(a: Any, b: Any) -> Any:
    return b + a


@functools.partial(jax.jit, inline=True)
def one_more(a: Any, b: Any) -> Any:
    return a + 1.0


@functools.partial(jax.jit, inline=True)
def plus_float(a: Any, b: Any) -> Any:
    return a.astype(jnp.int32).astype(jnp.float32) + b


@functools.partial(jax.jit, inline=True)
def two_results(stacked: Any) -> Any:
    return stacked.sum(0), jnp.tanh(stacked.sum(0))


def test_inlined_functions_of_the_user() -> None:
    def fun(p: Any, xs: Any) -> Any:
        totals = []
        for add in (doubled, added, one_more, plus_float):
            total = xs[0]
            for x in xs:
                total = add(total, x)
            totals.append(total * p["b"])
        return totals, two_results(jnp.stack(xs))

    assert_batches(fun, SAMPLES[:2], options=EVERY[2:])
