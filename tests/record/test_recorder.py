"""The recorder: which calls become one operation, which bodies run, and what is noticed on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jitbatch import clear_caches, jitbatch
from jitbatch.ir.tables import Tables
from jitbatch.record.cell_body import CellBody
from jitbatch.record.known_calls import KnownCalls
from jitbatch.record.recorder import Recorder
from jitbatch.record.values import Op, Value
from jitbatch.util import compat
from jitbatch.util.errors import ControlFlowError

X = jnp.ones(2)


@pytest.fixture(autouse=True)
def no_cells() -> None:
    """A cell is named by the first function that had it, here or in another test."""
    clear_caches()


@contextmanager
def recording(granularity: str = "subgraph") -> Iterator[Recorder]:
    """A recorder that is current."""
    recorder = Recorder(Tables(), KnownCalls(64), granularity, sys._getframe().f_code, "sample 0")
    with compat.set_current_trace(recorder):
        yield recorder
    recorder.invalidate()


def inputs(recorder: Recorder, *arrays: Any, shared: bool = False) -> list[Value]:
    """An input of the sample for each array."""
    avals = [compat.make_aval(np.shape(array), jnp.asarray(array).dtype) for array in arrays]
    make = recorder.shared_inputs if shared else recorder.inputs
    return make([(aval, recorder.tables.avals.number(aval)) for aval in avals])


def cells(recorder: Recorder) -> list[Any]:
    """The cells of the nodes."""
    return [recorder.tables.kinds[kind].cell for kind in recorder.builder.kinds]


def primitives(recorder: Recorder) -> list[str]:
    """Nodes and bare operations in the order of the recording."""
    names = [(node + 0.5, "call") for node in range(len(recorder.builder.kinds))]
    names += [(op.at, "index" if op.index is not None else op.primitive.name) for op in recorder.ops]
    return [name for _, name in sorted(names, key=lambda one: one[0])]


@jitbatch
def square(x: Any) -> Any:
    return lax.mul(x, x)


@jitbatch
def product(x: Any, y: Any) -> Any:
    return lax.mul(x, y)


@jitbatch
def twice(x: Any) -> Any:
    return square(lax.sin(square(x)))


def test_operations_are_recorded_in_order() -> None:
    with recording() as recorder:
        (x,) = inputs(recorder, X)
        y = lax.cos(lax.sin(x))
    assert primitives(recorder) == ["sin", "cos"]
    assert y.source is recorder.ops[1]
    assert recorder.ops[1].inputs[0] is recorder.ops[0].outputs[0]
    assert (y.shape, y.dtype) == ((2,), jnp.float32)


def test_a_call_of_a_decorated_function_is_one_operation() -> None:
    with recording() as recorder:
        (x,) = inputs(recorder, X)
        square(x)
    assert primitives(recorder) == ["call"]
    (cell,) = cells(recorder)
    assert cell.name == "square"
    assert (recorder.ops, recorder.builder.counts) == ([], [1])


def test_without_boundaries_a_call_is_its_body() -> None:
    for granularity in ("op", "graph"):
        with recording(granularity) as recorder:
            twice(*inputs(recorder, X))
        assert primitives(recorder) == ["mul", "sin", "mul"]


def test_a_function_that_calls_others_is_not_an_operation() -> None:
    with recording() as recorder:
        for _ in range(3):
            twice(*inputs(recorder, X))
            assert {type(entry) for entry in recorder.known.cell_bodies} == {CellBody}
            assert len(list(recorder.known.templates)) == 1  # of `square`
    assert primitives(recorder) == ["call", "sin", "call"] * 3
    scopes = [op.scope for op in recorder.ops]
    assert len({*scopes, 0}) == 4


def test_a_function_that_calls_others_for_some_arguments_only() -> None:
    """Where it calls none it is one operation, the same whether it is known to call others or not."""
    runs = []

    @jitbatch
    def total(xs: Any) -> Any:
        runs.append(len(xs))
        return lax.sin(square(xs[0])) + total(xs[1:]) if len(xs) > 1 else xs[0] + xs[0]

    three = jnp.ones(3)
    with recording() as recorder:
        x, y, z = inputs(recorder, X, X, three)
        for args in ([x, y], [z, z], [z], [y, x], [y, x]):
            total(args)
    assert runs == [2, 1, 2, 1, 1, 2, 2]  # a new base case runs twice: with aliases, it is remembered
    names = [cell.name.rsplit(".")[-1] for cell in cells(recorder)]
    assert names == ["square", "total"] * 2 + ["total"] + ["square", "total"] * 2
    assert [op.primitive.name for op in recorder.ops] == ["sin", "add"] * 4


@pytest.mark.parametrize("twice", [False, True])
def test_shared_values_given_to_a_function_that_calls_others(twice: bool) -> None:
    """It is not asked which of them are closed over, unless one is given twice; what it does is the same."""

    @jitbatch
    def scaled(params: Any, more: Any, xs: Any) -> Any:
        if len(xs) > 1:
            return square(scaled(params, more, xs[1:])) * params["w"]
        return params["w"] * xs[0] - more["v"]

    with recording() as recorder:
        w, v = inputs(recorder, X, X, shared=True)
        x, y = inputs(recorder, X, X)
        params, more = {"w": w}, {"v": w if twice else v}
        scaled(params, more, [x, y])
        scaled({"w": v}, more, [x])
        scaled(params, more, [x, x, y])
        assert len(list(recorder.known.cell_bodies)) == 2
    assert [cell.name.rsplit(".")[-1] for cell in cells(recorder)] == [
        "scaled", "square", "scaled", "scaled", "square", "square",
    ]  # fmt: skip
    assert len({cell for cell in cells(recorder) if cell.name.endswith("scaled")}) == 1


def test_a_leaf_runs_once_for_each_signature() -> None:
    runs = []

    @jitbatch
    def cell(x: Any, *, scale: Any = 1.0) -> Any:
        runs.append(x.shape)
        return x * scale

    with recording() as recorder:
        x, y, z = inputs(recorder, X, X, jnp.ones(3))
        for args in ((x,), (y,), (x,), (z,)):
            cell(*args)
        assert runs == [(2,), (3,)]
        cell(x, scale=2.0)
        cell(x, scale=3.0)
        assert len(runs) == 3
        cell(x, scale=2)
    assert len(runs) == 4


def test_numbers_that_are_passed_are_abstract_in_the_body() -> None:
    @jitbatch
    def cell(x: Any, n: Any) -> Any:
        return x if n > 0 else -x

    with recording() as recorder, pytest.raises(ControlFlowError, match="sample 0"):
        cell(*inputs(recorder, X), 1)


def test_custom_derivatives_stay_whole() -> None:
    with recording() as recorder:
        jax.nn.relu(*inputs(recorder, X))
    assert primitives(recorder) == ["custom_jvp_call"]


def test_jits_of_the_user_are_opened_only_for_single_operations() -> None:
    @jax.jit
    def users(x: Any) -> Any:
        return lax.sin(x) + 1.0

    for granularity, names in (("subgraph", ["jit"]), ("op", ["sin", "add"])):
        with recording(granularity) as recorder:
            users(*inputs(recorder, X))
        assert primitives(recorder) == names


def test_transformations_inside_a_sample_call_the_plain_function() -> None:
    with recording() as recorder:
        (x,) = inputs(recorder, X)
        jax.vmap(square)(x)
        jax.jit(square)(x)
        lax.map(square, x)
    assert "call" not in primitives(recorder)


def test_indexing_is_an_operation_of_its_own() -> None:
    with recording() as recorder:
        (xs,) = inputs(recorder, np.ones((5, 2), np.float32))
        row = xs[1:][::2][-1]
        two = lax.sin(xs)[1:][0]
    assert primitives(recorder) == ["index", "index", "sin", "index", "index"]
    assert row.source == (0, 1, 3)  # a row of an input is an input
    assert two.source.index == 1
    assert recorder.ops[2].outputs == two.source.inputs


def test_what_jnp_does_in_many_operations_is_one() -> None:
    with recording() as recorder:
        (xs, i) = inputs(recorder, np.ones((5, 2), np.float32), np.int32(1))
        one = xs[i]
        1 - (0.5 * one + 2) / 3
    assert primitives(recorder) == ["jit", "mul", "add", "div", "sub"]
    assert not recorder.ops[0].is_users_jit


def test_a_value_cannot_be_used_after_its_recording() -> None:
    kept: list[Any] = []

    def leak(_: Any, x: Any) -> Any:
        kept.append(x)
        return x

    jitbatch(leak).batch(None, [X])
    with pytest.raises(Exception, match=r"(?i)leak|tracer|recorded|no longer"):
        kept[0] + 1
    with pytest.raises(Exception, match=r"(?i)leak|tracer|recorded|no longer"):
        kept[0][0]


def test_leaking_into_a_later_sample_is_refused() -> None:
    kept: list[Any] = []

    def leak(_: Any, x: Any) -> Any:
        kept.append(x)
        return kept[0] + x

    with pytest.raises(Exception, match=r"(?i)leak|tracer|recorded|no longer"):
        jitbatch(leak, out="list").batch(None, [X, jnp.ones(3), X])


def test_operations_know_what_they_are() -> None:
    make: Callable[..., Op] = Op
    op = make([], 0, 0)
    assert (op.primitive, op.cell, op.index, op.is_users_jit) == (None, None, None, False)


@pytest.mark.parametrize("granularity", ["subgraph", "op", "graph"])
def test_a_number_that_a_jitted_function_hands_through(granularity: str) -> None:
    fun = jitbatch(lambda w, x: jax.jit(lambda a, b, c: (a, b, c))(x * w, 2.5, 3), granularity=granularity)
    first, second, third = fun.batch(2.0, [1.0, 4.0])
    assert (first.tolist(), second.tolist(), third.tolist()) == ([2, 8], [2.5, 2.5], [3, 3])


@jitbatch
def _doubled_and_squared(xs: Any) -> Any:
    return xs[0] * 2 + square(xs[1])


@pytest.mark.parametrize("use", [lambda x, buffer: x + buffer, lambda x, buffer: _doubled_and_squared([buffer, x])])
@pytest.mark.parametrize("granularity", ["op", "subgraph", "graph"])
def test_an_array_that_is_filled_anew(use: Any, granularity: Any) -> None:
    """Operations read what is in it when they are called."""

    def sample(_: Any, x: Any) -> Any:
        buffer, made = np.zeros(2, np.float32), []
        for i in range(3):
            buffer[:] = i + 1
            made.append(use(x, buffer))
            made.append(use(x, buffer))
        return sum(number * one for number, one in enumerate(made, 1))

    samples = [np.float32([0.1, 0.2]), np.float32([0.3, 0.4])]
    got = jitbatch(sample, granularity=granularity).batch(None, samples)
    np.testing.assert_allclose(got, np.stack([sample(None, x) for x in samples]), rtol=1e-6)
