"""Templates: calls on arguments of known forms are recorded at once, and are what running their bodies would record."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recorder import X, cells, inputs, recording

from jitbatch import jitbatch
from jitbatch.record.templates import taking

W = jnp.float32([[0.5, -0.2], [0.1, 0.3]])
LAYERS = [W, 2 * W]
SAMPLES = [np.array([[i, 1], [2, -i]][: 1 + i % 2], np.float32) for i in range(5)]


class State(NamedTuple):
    h: Any
    c: Any


@jitbatch
def step(w: Any, state: Any, x: Any) -> Any:
    return State(jnp.tanh(state.h @ w + x), state.c + x)


@jitbatch
def start(w: Any) -> Any:
    return State(w[0], w[1])


def check(fun: Any, params: Any, samples: list[Any]) -> None:
    batched = jitbatch(fun)
    for _ in range(2):  # the second time, in another order, with what is known
        want = jnp.stack([fun(params, sample) for sample in samples])
        np.testing.assert_allclose(batched.batch(params, samples), want, rtol=1e-5, atol=1e-6)
        samples = [*samples[::-1], np.concatenate([samples[0], samples[1]])]


def test_the_form_of_arguments_says_which_shared_values_they_are() -> None:
    runs = []

    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        runs.append(0)
        return x @ w

    with recording() as recorder:
        layers = inputs(recorder, *LAYERS, shared=True)
        (x,) = inputs(recorder, X)
        for layer in (*layers, *layers):
            x = cell(layer, x)
    assert len(runs) == 1
    assert len(set(recorder.builder.kinds)) == len(list(recorder.known.templates)) == 2
    assert len(set(cells(recorder))) == 1
    check(lambda layers, xs: cell(layers[1], cell(layers[0], xs[0])), LAYERS, SAMPLES)


def test_states_from_rows_shared_values_and_constants() -> None:
    def fun(w: Any, xs: Any) -> Any:
        state, other = start(w), State(jnp.ones(2), np.zeros(2, np.float32))
        for x in xs:
            state, other = step(w, state, x), step(w, other, x)
        return state.h + other.c + start(w).h

    check(fun, W, SAMPLES)


@pytest.mark.parametrize("kind", [list, dict], ids=["list", "dict"])
def test_results_that_can_be_changed_are_looked_at_anew(kind: Any) -> None:
    @jitbatch
    def pair(w: Any, x: Any) -> Any:
        return {"a": x @ w, "b": x} if kind is dict else [x @ w, x]

    @jitbatch
    def use(w: Any, two: Any) -> Any:
        a, b = two.values() if kind is dict else two
        return a - 2 * b

    def fun(w: Any, xs: Any) -> Any:
        two = pair(w, xs[0])
        first = use(w, two)
        two["a" if kind is dict else 0] = first
        return use(w, two)

    check(fun, W, SAMPLES)


def test_nested_tuples_and_lists_of_results() -> None:
    @jitbatch
    def both(w: Any, x: Any) -> Any:
        return (x @ w, State(x + 1, x * 2)), x - 1

    @jitbatch
    def total(w: Any, parts: Any) -> Any:
        return sum(leaf for leaf in jax.tree.leaves(parts))

    def fun(w: Any, xs: Any) -> Any:
        made = [both(w, x) for x in xs]
        return total(w, made) + total(w, made[0]) + total(w, made[0][0][1]) + total(w, (made[0], made[-1]))

    check(fun, W, SAMPLES)


def test_what_is_passed_twice_and_what_is_closed_over() -> None:
    """A fragment that was made of `f(x, x)` serves `f(x, y)`, and one whose body uses a value of the sample beside its
    arguments serves nothing else."""

    @jitbatch
    def mixed(w: Any, x: Any, y: Any) -> Any:
        return step(w, State(x, y), y).h - y

    def fun(w: Any, xs: Any) -> Any:
        x, y = xs[0], xs[-1] + 1

        @jitbatch
        def closing(w: Any, given: Any) -> Any:
            return step(w, State(given, x), x).h

        same = mixed(w, x, x) + mixed(w, x, x) + closing(w, x) + closing(w, x)
        return same + mixed(w, x, y) + mixed(w, y, x) + closing(w, y)

    check(fun, W, SAMPLES)


def test_results_that_are_arguments_or_equal() -> None:
    @jitbatch
    def many(w: Any, x: Any) -> Any:
        y = x @ w
        return {"x": x, "w": w, "y": y, "again": y, "one": 1.0}

    def fun(w: Any, xs: Any) -> Any:
        found = many(w, xs[0])
        return step(found["w"], State(found["y"], found["again"]), found["x"]).h * found["one"]

    check(fun, W, SAMPLES)


def test_taking() -> None:
    assert [list(taking(places)("abcd")) for places in ((), (1,), (2, 0))] == [[], ["b"], ["c", "a"]]  # type: ignore[arg-type]


class Swapped(NamedTuple):
    a: Any
    b: Any


jax.tree_util.register_pytree_node(
    Swapped, lambda s: ((s.b, s.a), None), lambda _, leaves: Swapped(leaves[1], leaves[0])
)


def test_a_named_tuple_that_is_taken_apart_in_its_own_way() -> None:
    @jitbatch
    def pair(w: Any, x: Any) -> Swapped:
        return Swapped(w * x, w + x)

    @jitbatch
    def sample(w: Any, xs: Any) -> Any:
        return sum(pair(w, x).a for x in xs)

    assert sample.batch(3.0, [(1.0, 2.0), (4.0, 5.0)]).tolist() == [9.0, 27.0]
