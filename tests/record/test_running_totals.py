"""Running totals: one operation while a sample is recorded, and what the additions were written as to whoever reads."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_reductions import H, arities, assert_batches, graph_of, term, vectors

from jitbatch import jitbatch
from jitbatch.record.context import Context
from jitbatch.record.recorder import Recorder
from jitbatch.record.running_totals import apart
from jitbatch.util import compat


def loop(p: Any, xs: Any) -> Any:
    total = term(p, xs[0])
    for x in xs[1:]:
        total = total + term(p, x)
    return total


def two_in_turn(p: Any, xs: Any) -> Any:
    one, two = term(p, xs[0]), p["b"] * term(p, xs[0])
    for x in xs[1:]:
        one = one + term(p, x)
        two = two + one * p["s"]
    return one * two


def read_on_the_way(p: Any, xs: Any) -> Any:
    total, seen = jnp.zeros(H), []
    for x in xs:
        total = total + term(p, x)
        seen.append(total)
    return seen[0] * seen[-1] + seen[len(seen) // 2]


@jitbatch
def halved(p: Any, x: Any) -> Any:
    return jnp.tanh(x) * 0.5


def passed_on_the_way(p: Any, xs: Any) -> Any:
    total = term(p, xs[0])
    for x in xs[1:]:
        total = total + halved(p, total) if len(xs) == 2 else total + x
    return halved(p, total)


def continued_twice(p: Any, xs: Any) -> Any:
    """Two sums that begin as one: the second goes on from what the first was."""
    begun = term(p, xs[0])
    for x in xs[1:]:
        begun = begun + x
    ends = []
    for factor in (1.0, 2.0):
        end = begun
        for x in xs:
            end = end + factor * x
        ends.append(end)
    return ends[0] * ends[1]


def with_zero_among_terms(p: Any, xs: Any) -> Any:
    zero, total = jnp.zeros(H), term(p, xs[0])
    for x in (*xs[1:], zero, *xs):
        total = total + x
    return total


@pytest.mark.parametrize(
    "fun", [loop, two_in_turn, read_on_the_way, passed_on_the_way, continued_twice, with_zero_among_terms]
)
def test_totals_are_what_the_loop_gives(fun: Any) -> None:
    assert_batches(fun, [vectors(n) for n in (1, 2, 3, 5)])


def test_totals_in_graphs_as_a_whole() -> None:
    assert_batches(loop, [vectors(n) for n in (1, 3, 5)], options=[("graph", "dispatch"), ("graph", "fused")])


def record(fun: Any, count: int) -> Recorder:
    context = Context(fun, "subgraph")
    recorder = Recorder(context.tables, context.known, "subgraph", record.__code__, "a sample")
    aval = compat.make_aval((H,), np.float32)
    number = context.tables.avals.number(aval)
    values = recorder.inputs([(aval, number)] * count)
    with compat.set_current_trace(recorder):
        fun(values)
    return recorder


def test_a_total_is_one_operation() -> None:
    recorder = record(sum_of, 5)
    assert len(recorder.ops) == 4
    (op,) = set(recorder.ops)
    assert (len(op.inputs), len(op.totals)) == (5, 3)


def test_additions_are_taken_apart_in_their_places() -> None:
    recorder = record(sum_of, 5)
    values = [value for value, _ in recorder.ops[0].totals] + recorder.ops[0].outputs
    terms = recorder.ops[0].inputs
    additions = apart(recorder.ops)
    assert [op.outputs[0] for op in additions] == values
    assert [op.inputs[1] for op in additions] == list(terms[1:])
    assert [op.inputs[0] for op in additions] == [terms[0], *values[:-1]]
    assert all(value.source is op for value, op in zip(values, additions, strict=True))


def sum_of(values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def test_what_is_read_on_the_way_is_no_sum() -> None:
    assert arities(graph_of(loop, vectors(4))) == [4]
    assert arities(graph_of(read_on_the_way, vectors(4))) != [4]


def test_places_differ_in_activations_of_a_function() -> None:
    def chain(p: Any, xs: Any) -> Any:
        return term(p, xs[0]) if len(xs) == 1 else chain(p, xs[:-1]) + term(p, xs[-1])

    assert_batches(chain, [vectors(n) for n in (1, 2, 4)])
