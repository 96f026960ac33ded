"""Opening: a decorated cell that reduces a list has the same types for every length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.ir.cell import ReductionCell
from jitbatch.record.list_arguments import Element, list_elements

H = 2
W = {"w": jnp.float32([[0.3, -0.2], [0.5, 0.4]]), "b": jnp.float32([0.1, -0.2]), "layers": [jnp.ones(H), jnp.zeros(H)]}
EXECUTORS = ("fused", "dispatch")


def vectors(count: int, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed + count).normal(size=(count, H)).astype(np.float32))


def tree(*arities: int) -> Any:
    """A node has as many children as the first number says; the first of them is a tree of the others."""
    x = vectors(1, sum(arities))[0]
    count, below = (arities[0], arities[1:]) if arities else (0, ())
    return x, [tree(*below) if i == 0 else tree() for i in range(count)]


TREES = [tree(1), tree(3, 2)]


def assert_batches(fun: Any, samples: list[Any], rtol: float = 1e-4) -> None:
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, samples, True, transform=jax.jit)
    for executor in EXECUTORS:
        batched = jitbatch(fun, granularity="subgraph", executor=executor)
        assert_same(gradients(batched.batch, W, samples, True, transform=jax.jit), want, rtol=rtol, atol=rtol)


def cells_of(fun: Any, *samples: Any) -> list[Any]:
    batched = jitbatch(fun, granularity="subgraph")
    batched.plan(W, list(samples))
    (context,) = batched._planner.contexts
    return sorted({graph.tables.kinds[kind].cell.digest for graph in context.graphs for kind in graph.kind})


def has_sums(fun: Any, *samples: Any) -> bool:
    batched = jitbatch(fun, granularity="subgraph")
    batched.plan(W, list(samples))
    (context,) = batched._planner.contexts
    return any(isinstance(g.tables.kinds[kind].cell, ReductionCell) for g in context.graphs for kind in g.kind)


# --- Cells with a list among their arguments, in every place


@jitbatch
def in_a_list(p: Any, x: Any, children: Any) -> Any:
    forget = [jax.nn.sigmoid(x + h @ p["w"]) * c for h, c in children]
    c = jnp.sin(x) + sum(forget, jnp.zeros(H))
    return jnp.tanh(sum([h for h, _ in children], jnp.zeros(H)) @ p["w"] + c), c


@jitbatch
def in_a_tuple(p: Any, x: Any, children: Any) -> Any:
    c = jnp.sin(x) + sum(jax.nn.sigmoid(x + h @ p["w"]) * c for h, c in children)
    return jnp.tanh(c), c


@jitbatch
def in_varargs(p: Any, x: Any, *children: Any) -> Any:
    c = jnp.sin(x) + sum([jax.nn.sigmoid(x + h @ p["w"]) * c for h, c in children], jnp.zeros(H))
    return jnp.tanh(c), c


@jitbatch
def in_a_keyword(p: Any, *, x: Any, children: Any) -> Any:
    c = jnp.stack([x, *(jnp.tanh(h @ p["w"]) * c for h, c in children)]).mean(0)
    return jnp.tanh(c), c


@jitbatch
def in_a_dict(p: Any, x: Any, children: Any) -> Any:
    total = jnp.zeros(H)
    for c in children["c"]:
        total = total + jnp.tanh(c @ p["w"])
    c = x + total + jnp.stack([p["b"], *children["h"]]).max(0)
    return jnp.tanh(c), c


def listed(p: Any, t: Any) -> Any:
    return in_a_list(p, t[0], [listed(p, child) for child in t[1]])


def in_tuples(p: Any, t: Any) -> Any:
    return in_a_tuple(p, t[0], tuple(in_tuples(p, child) for child in t[1]))


def in_arguments(p: Any, t: Any) -> Any:
    return in_varargs(p, t[0], *[in_arguments(p, child) for child in t[1]])


def in_keywords(p: Any, t: Any) -> Any:
    return in_a_keyword(p, x=t[0], children=[in_keywords(p, child) for child in t[1]])


def in_dicts(p: Any, t: Any) -> Any:
    states = [in_dicts(p, child) for child in t[1]]
    return in_a_dict(p, t[0], {"h": [h for h, _ in states], "c": [c for _, c in states]})


@jitbatch
def outer(p: Any, x: Any, children: Any) -> Any:
    """Calls a cell that is opened, and reduces a list itself."""
    h, c = in_a_list(p, x, children)
    return h + jnp.stack([h for h, _ in children] + [c]).min(0), c


def through_another_cell(p: Any, t: Any) -> Any:
    return outer(p, t[0], [through_another_cell(p, child) for child in t[1]])


EVERY = [listed, in_tuples, in_arguments, in_keywords, in_dicts, through_another_cell]


@pytest.mark.parametrize("fun", EVERY, ids=lambda fun: fun.__name__)
def test_the_types_do_not_depend_on_the_length_of_the_list(fun: Any) -> None:
    assert has_sums(fun, tree(3, 2))
    few, many = cells_of(fun, tree(2, 3)), cells_of(fun, tree(7, 5), tree(4, 6))
    assert few == many
    # A cell without children is another cell; one child is not.
    assert cells_of(fun, tree(2, 1), tree(1, 4)) == few


@pytest.mark.parametrize("fun", EVERY, ids=lambda fun: fun.__name__)
def test_values_and_gradients(fun: Any) -> None:
    assert_batches(fun, TREES)


# --- What a call is opened with is not what it is called with later


@jitbatch
def started(p: Any, xs: Any, start: Any) -> Any:
    return sum([jnp.tanh(x @ p["w"]) for x in xs], start)


@jitbatch
def scaled(p: Any, xs: Any, scale: Any) -> Any:
    return scale * sum([scale + jnp.tanh(x @ p["w"]) for x in xs])


@pytest.mark.parametrize("first", ["zeros", "number", "parameter", "row"])
def test_a_start_that_was_zero_once_is_still_an_argument(first: str) -> None:
    def fun(p: Any, xs: Any) -> Any:
        starts: dict[str, Any] = {"zeros": jnp.zeros(H), "number": 0.0, "parameter": p["b"], "row": xs[0]}
        order = [starts.pop(first), *starts.values(), 1.0, jnp.ones(H), jnp.zeros(()), p["b"][0]]
        return [started(p, xs, start) for start in order]

    samples = [vectors(n) for n in (1, 3)]
    assert_same(jitbatch(fun).batch(W, samples), stack([fun(W, xs) for xs in samples]))


def test_numbers_that_are_passed_to_an_opened_cell_are_arguments() -> None:
    def fun(p: Any, xs: Any) -> Any:
        return [scaled(p, xs, scale) for scale in (0.5, 2.0, 0.0, xs[0][0], p["b"][1])]

    assert_batches(fun, [vectors(1), vectors(3)])


def test_one_value_in_several_places() -> None:
    def fun(p: Any, xs: Any) -> Any:
        y = jnp.sin(xs[0])
        states = [(y, x) for x in xs]
        return in_a_list(p, y, states), in_a_list(p, xs[0], [(y, y)] * len(xs)), in_varargs(p, y, *states, (y, y))

    assert_batches(fun, [vectors(1), vectors(3)])


def test_a_stack_that_is_an_argument_is_not_looked_into() -> None:
    @jitbatch
    def cell(p: Any, xs: Any, stacked: Any) -> Any:
        return sum(jnp.tanh(x) for x in xs) + stacked.sum(0)

    def fun(p: Any, xs: Any) -> Any:
        return cell(p, xs, jnp.stack(xs)) + cell(p, xs, jnp.stack([p["b"]] * len(xs)))

    assert_batches(fun, [vectors(1), vectors(3)])


# --- Lists of one


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min, jnp.sum, jnp.mean], ids=lambda reduce: reduce.__name__)
@pytest.mark.parametrize("more", [0.0, 1.0])
def test_a_list_of_one(reduce: Any, more: float) -> None:
    @jitbatch
    def pool(p: Any, xs: Any) -> Any:
        pooled = reduce(jnp.stack([jnp.tanh(x @ p["w"]) for x in xs]), axis=0)
        return jnp.sin(pooled @ p["w"]) if more else pooled

    def fun(p: Any, xs: Any) -> Any:
        return pool(p, xs)

    assert cells_of(fun, vectors(1)) == cells_of(fun, vectors(2)) == cells_of(fun, vectors(5))
    samples = [vectors(1), vectors(3)]
    assert_same(jitbatch(fun).batch(W, samples), stack([fun(W, xs) for xs in samples]))


def test_results_that_are_arguments_terms_or_constants() -> None:
    @jitbatch
    def cell(p: Any, xs: Any, x: Any) -> Any:
        terms = [jnp.tanh(y @ p["w"]) for y in xs]
        largest = jnp.stack([jnp.sin(y) for y in xs]).max(0)
        return {"argument": x, "element": xs[-1], "term": terms[0], "sum": sum(terms), "constant": jnp.ones(H),
                "number": 2.0, "parameter": p["b"], "max": largest}  # fmt: skip

    def fun(p: Any, xs: Any) -> Any:
        return cell(p, xs, xs[0] * 2)

    assert_batches(fun, [vectors(1), vectors(3)])


# --- What is not opened


@pytest.mark.parametrize(
    "cell",
    [
        lambda p, xs: jnp.tanh(xs[0] @ p["w"]) + xs[-1],
        lambda p, xs: jnp.stack([xs[0] * x for x in xs[1:]] + [xs[0]]).sum(0),
        lambda p, xs: sum(p["layers"]) * xs[0],
        lambda p, xs: jnp.cumsum(jnp.stack(xs), axis=0)[-1],
    ],
)
def test_a_cell_that_does_not_reduce_its_list_stays_whole(cell: Any) -> None:
    decorated = jitbatch(cell)

    def fun(p: Any, xs: Any) -> Any:
        return decorated(p, xs)

    assert not has_sums(fun, vectors(3))
    samples = [vectors(2), vectors(3)]
    assert_same(jitbatch(fun).batch(W, samples), stack([fun(W, xs) for xs in samples]))


# --- Elements


def elements_of(fun: Any, *args: Any, shared: tuple[bool, ...] = (), **kwargs: Any) -> list[Element | None]:
    is_shared = shared or (False,) * (len(args) + len(kwargs))
    return list_elements(fun, args, list(kwargs.values()), is_shared)


def test_elements_of_lists() -> None:
    def fun(p: Any, x: Any, xs: Any) -> Any: ...

    assert elements_of(fun, 1.0, 2.0, [1.0, 2.0]) == [None, None, Element(0, 0), Element(0, 1)]
    assert elements_of(fun, 1.0, 2.0, [(1.0, 2), (3.0, 4)])[2:] == [Element(0, i) for i in (0, 0, 1, 1)]
    assert elements_of(fun, 1.0, 2.0, []) == [None, None]
    assert elements_of(fun, [1.0, 2.0], [3.0], 1.0, shared=(True, False, False)) == [None, None, Element(0, 0), None]


def test_what_is_no_array_may_be_in_a_list() -> None:
    @jitbatch
    def cell(w: Any, x: Any, names: list[str], children: list[Any]) -> Any:
        for name in names:
            x = getattr(jnp, name)(x)
        return w * x + sum(h for h, _ in children)

    @jitbatch
    def sample(w: Any, xs: Any) -> Any:
        return cell(w, xs[0], ["tanh", "sin"], [(x, "child") for x in xs])

    samples = [np.float32([1.0, 2.0]), np.float32([3.0, 4.0, 5.0])]
    np.testing.assert_allclose(sample.batch(2.0, samples), [sample(2.0, xs) for xs in samples], rtol=1e-6)
    assert sample.plan(2.0, samples).summary.types == jitbatch(sample.__wrapped__).plan(2.0, samples[:1]).summary.types


def test_elements_of_lists_inside_of_others() -> None:
    def fun(children: Any) -> Any: ...

    assert elements_of(fun, {"a": [1.0, 2.0], "b": [3.0]}) == [Element(0, 0), Element(0, 1), Element(1, 0)]
    assert elements_of(fun, (1, [2.0])) == [None, Element(0, 0)]  # a tuple of items that differ is a record
    assert elements_of(fun, children=[1.0, 2.0]) == [Element(0, 0), Element(0, 1)]


def test_elements_of_further_arguments() -> None:
    def fun(p: Any, *xs: Any) -> Any: ...

    assert elements_of(fun, 1.0, 2.0, 3.0) == [None, Element(0, 0), Element(0, 1)]
    assert elements_of(fun, 1.0) == [None]
    assert elements_of(fun, 1.0, 2, 3.0) == [None, None, None]
