"""Composite calls: a decorated function that calls others runs for each new structure of samples, without aliases."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Static, jitbatch
from jitbatch.util.errors import ControlFlowError, MutationError

PARAMS = {"w": jnp.float32([[0.5, -0.2], [0.1, 0.3]]), "b": jnp.float32([0.1, -0.1])}


def leaf_vector(i: int) -> Any:
    return np.float32([i, -i / 2])


def tree(*shape: Any) -> Any:
    """A tree of vectors: `tree(1, (2, 3))`."""
    return tuple(tree(*one) if isinstance(one, tuple) else leaf_vector(one) for one in shape)


@jitbatch
def join(params: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(left @ params["w"] + right)


def make_encoder(runs: list[Any]) -> Any:
    """A decorated recursion that notes what its body runs on, with a bare operation in every node."""

    @jitbatch
    def encode(params: Any, node: Any) -> Any:
        runs.append(jax.tree.structure(node))
        if not isinstance(node, tuple):
            return node * 2
        left, right = (encode(params, child) for child in node)
        return join(params, left, right) + params["b"] * left

    return encode


TREES = [tree(1, (2, 3)), tree((4, 5), (6, 7)), tree((1, (2, 3)), (8, 9)), tree((4, 5), (1, (2, 3)))]


def in_turn(fun: Any, params: Any, samples: list[Any]) -> Any:
    return jnp.stack([fun(params, sample) for sample in samples])


def test_a_composite_call_runs_for_each_sample_and_gets_no_form() -> None:
    runs: list[Any] = []
    encode = make_encoder(runs)
    encode.plan(PARAMS, TREES[:2])
    runs.clear()
    (context,) = encode._planner.contexts
    forms = len(context.tables.forms)
    encode.plan(PARAMS, TREES[2:])
    inner = [jax.tree.structure(one) for one in (TREES[2], TREES[0], tree(2, 3), tree(8, 9))]
    assert [one for one in runs if one.num_leaves > 1][:4] == inner
    assert len(context.tables.forms) == forms


@pytest.mark.parametrize("granularity", ["subgraph", "op"])
def test_values_and_gradients(granularity: str) -> None:
    runs: list[Any] = []
    fun = make_encoder(runs).__wrapped__
    batched = jitbatch(fun, granularity=granularity)
    batched.plan(PARAMS, TREES)
    for samples in (TREES[2:], [(TREES[0], TREES[1]), (TREES[3], TREES[0])]):
        plan = batched.plan(PARAMS, samples)

        def loss(params: Any, run: Any) -> Any:
            return (run(params) ** 2).sum()

        want = jax.value_and_grad(loss)(PARAMS, lambda p, samples=samples: in_turn(fun, p, samples))
        got = jax.value_and_grad(loss)(PARAMS, lambda p, plan=plan: batched.batch(p, plan))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def test_what_closes_over_the_sample_runs_each_time() -> None:
    runs = []

    @jitbatch
    def score(params: Any, xs: Any) -> Any:
        context = join(params, xs[0], xs[1])
        runs.append(0)
        return outer(params, xs[0], context)

    def outer(params: Any, x: Any, context: Any) -> Any:
        held.append(context)
        return inner(params, x)

    held: list[Any] = []

    @jitbatch
    def inner(params: Any, x: Any) -> Any:
        return join(params, x, held[-1])

    samples = [np.float32([[1, 2], [3, i]]) for i in range(3)] + [
        np.float32([[5, 6], [7, i], [8, 8]]) for i in range(2)
    ]
    want = in_turn(score.__wrapped__, PARAMS, samples)
    held.clear()
    np.testing.assert_allclose(score.batch(PARAMS, samples), want, rtol=1e-5)


def test_static_values_are_part_of_the_structure() -> None:
    @jitbatch
    def apply(params: Any, node: Any) -> Any:
        if isinstance(node, dict):
            left, right = apply(params, node["left"]), apply(params, node["right"])
            return join(params, left, right) if node["op"].value == "join" else left * right
        return join(params, node, node)

    def node(op: str, left: Any, right: Any) -> Any:
        return {"op": Static(op), "left": left, "right": right}

    x, y = leaf_vector(1), leaf_vector(2)
    samples = [
        node("join", x, y),
        node("mul", x, y),
        node("mul", node("join", x, y), y),
        node("join", node("mul", y, x), y),
    ]
    np.testing.assert_allclose(
        apply.batch(PARAMS, samples), in_turn(apply.__wrapped__, PARAMS, samples), rtol=1e-5, atol=1e-6
    )


def test_results_that_are_not_arrays_are_made_each_time() -> None:
    @jitbatch
    def annotated(params: Any, x: Any) -> Any:
        return join(params, x, x), "text"

    @jitbatch
    def score(params: Any, xs: Any) -> Any:
        return sum(annotated(params, x)[0] * len(annotated(params, x)[1]) for x in xs)

    samples = [np.ones((2, 2), np.float32), np.ones((3, 2), np.float32), 2 * np.ones((2, 2), np.float32)]
    np.testing.assert_allclose(score.batch(PARAMS, samples), in_turn(score.__wrapped__, PARAMS, samples), rtol=1e-5)


def test_sums_are_gathered_through_calls() -> None:
    @jitbatch
    def loss(params: Any, node: Any) -> Any:
        own = join(params, node[0], node[0]).sum()
        return own + sum(loss(params, child) for child in node[1])

    def node(i: int, *children: Any) -> Any:
        return leaf_vector(i), list(children)

    samples = [node(1, node(2), node(3)), node(4, node(1, node(2), node(3)), node(5), node(6)), node(7)]
    plan = loss.plan(PARAMS, samples)
    want = in_turn(lambda p, s: loss.__wrapped__(p, s), PARAMS, samples)
    np.testing.assert_allclose(loss.batch(PARAMS, plan), want, rtol=1e-5)


def test_a_base_case_that_reads_what_is_closed_over_runs_once() -> None:
    def sample(params: Any, words: Any, shape: Any) -> Any:
        remaining, memo = iter(words), {}

        def word(params: Any) -> Any:
            memo[len(memo)] = next(remaining) * params["b"]
            return memo[len(memo) - 1]

        @jitbatch
        def encode(params: Any, shape: Any) -> Any:
            if not isinstance(shape.value, tuple):
                return word(params)
            left, right = (encode(params, Static(one)) for one in shape.value)
            return join(params, left, right)

        return encode(params, shape)

    words = [[leaf_vector(i) for i in range(1, 1 + n)] for n in (2, 4)]
    shapes = [Static((0, 0)), Static((0, (0, 0)))]
    want = jnp.stack([sample(PARAMS, *one) for one in zip(words, shapes, strict=True)])
    np.testing.assert_allclose(jitbatch(sample).batch(PARAMS, words, shapes), want, rtol=1e-5)


@pytest.mark.parametrize("order", [1, -1])
def test_an_argument_that_is_changed_is_an_error_in_any_order(order: int) -> None:
    @jitbatch
    def last(params: Any, xs: Any) -> Any:
        if len(xs) == 1:
            return join(params, xs[0], xs[0])
        return xs.pop() + xs.pop()

    samples = [[leaf_vector(i) for i in range(n)] for n in (1, 2)][::order]
    with pytest.raises(MutationError, match="an argument of type list"):
        jitbatch(lambda params, xs: last(params, list(xs))).batch(PARAMS, samples)


def comb(shape: int, leaves: int = 10) -> Any:
    """A tree that has this many leaves and, for each number, another shape."""
    grown: Any = (leaf_vector(0), leaf_vector(1))
    for i in range(leaves - 2):
        grown = (grown, leaf_vector(i)) if shape >> i & 1 else (leaf_vector(i), grown)
    return grown


def test_a_base_case_with_many_leaves_is_one_operation() -> None:
    """Also where a tree of such base cases is walked."""

    @jitbatch
    def encode(params: Any, node: Any) -> Any:
        if isinstance(node, dict):
            return jnp.tanh(sum(node.values()))
        return join(params, encode(params, node[0]), encode(params, node[1]))

    def words(node: Any) -> Any:
        return (words(node[0]), words(node[1])) if isinstance(node, tuple) else {str(i): node + i for i in range(10)}

    samples = [words(comb(i, 5 + i % 3)) for i in range(30)]
    encode.plan(PARAMS, samples[:10])
    encode.plan(PARAMS, samples[10:])
    (context,) = encode._planner.contexts
    assert len(context.tables.kinds) == 2
    np.testing.assert_allclose(
        encode.batch(PARAMS, samples), in_turn(encode.__wrapped__, PARAMS, samples), rtol=1e-5, atol=1e-6
    )


def test_arguments_that_a_call_returns_can_be_used_later() -> None:
    @jitbatch
    def encode(params: Any, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        h = encode(params, node[0])
        for child in node[1:]:
            h = join(params, h, encode(params, child))
        return h

    def closing(params: Any, x: Any) -> Any:
        y = x + 1

        @jitbatch
        def inner(params: Any, z: Any) -> Any:
            return join(params, encode(params, y), z)

        return inner(params, x) + y

    def score(params: Any, words: Any) -> Any:
        return encode(params, words) + words[0] + closing(params, words[1])

    samples = [[leaf_vector(i) for i in range(k)] for k in (3, 12, 13, 12)]
    np.testing.assert_allclose(jitbatch(score).batch(PARAMS, samples), in_turn(score, PARAMS, samples), rtol=1e-5)


def test_a_body_sees_a_copy_whether_it_walks_or_not() -> None:
    """As in a `jax.jit`, whose dictionaries are sorted, too."""

    @jitbatch
    def fold(params: Any, words: Any) -> Any:
        h = params["b"]
        for word in words.values():
            h = join(params, h, word)
        return h if len(words) < 3 else fold(params, dict(list(words.items())[:2])) + h

    @jitbatch
    def score(params: Any, xs: Any, _: Any) -> Any:
        return fold(params, {f"k{9 - i}": x for i, x in enumerate(xs)})

    xs = [leaf_vector(i) for i in range(10)]
    score.batch(PARAMS, [xs[:4]], [Static("to know that it calls others")])
    results = [score.batch(PARAMS, [xs], [Static(number)]) for number in range(4)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_calls_on_large_arguments_are_counted() -> None:
    runs: list[Any] = []
    encode = make_encoder(runs)
    score = jitbatch(lambda params, tree: encode(params, tree).sum())
    score.plan(PARAMS, [comb(i) for i in range(40)])
    assert score.cache_info()["subgraphs"].misses == len(runs) + 1  # and that of `join`


def test_a_function_that_calls_none_on_large_arguments() -> None:
    """It is one operation, whether that was known or not."""
    runs: list[int] = []

    @jitbatch
    def total(params: Any, xs: Any) -> Any:
        runs.append(len(xs))
        if isinstance(xs, tuple):
            return join(params, total(params, xs[0]), total(params, xs[1]))
        return sum(xs[1:], jnp.tanh(xs[0]) * 2)

    def xs(length: int) -> list[Any]:
        return [leaf_vector(i) for i in range(length)]

    # A call that calls others, one of another structure that calls none and runs as it is, and then leaves.
    samples = [((xs(3), xs(3)), xs(3)), (xs(12), xs(3)), (xs(13), xs(14)), (xs(12), xs(12))]
    np.testing.assert_allclose(
        total.batch(PARAMS, samples), in_turn(total.__wrapped__, PARAMS, samples), rtol=1e-5, atol=1e-6
    )
    total.plan(PARAMS, [((xs(13), xs(14)), xs(12))])  # what ran without aliases runs again, and is remembered
    runs.clear()
    total.plan(PARAMS, [((xs(12), xs(13)), xs(14))])
    assert set(runs) == {2}
    (context,) = total._planner.contexts
    assert (
        len(context.tables.kinds) == 3
    )  # `join`, the first term and the sum: a body that ran twice has the same cells


def test_what_is_wrong_with_a_body_is_told_when_it_walks() -> None:
    def sample(params: Any, xs: Any, wrong: Any) -> Any:
        @jitbatch
        def walk(params: Any, xs: Any) -> Any:
            if wrong.value == "pops" and len(xs) == 12:
                xs.pop()
            if wrong.value == "asks" and xs[-1] > 0:
                return xs[-1]
            return join(params, xs[0], walk(params, xs[1:])) if len(xs) > 1 else xs[0]

        return walk(params, [*xs, 1.0] if wrong.value == "asks" else xs)

    fun = jitbatch(sample)
    vectors = [leaf_vector(i) for i in range(12)]
    assert fun.batch(PARAMS, [vectors[:4]], [Static("nothing")]).shape == (1, 2)
    assert fun.batch(PARAMS, [vectors, vectors], [Static("nothing")] * 2).shape == (2, 2)
    with pytest.raises(MutationError, match="an argument of type list"):
        fun.batch(PARAMS, [vectors], [Static("pops")])
    with pytest.raises(ControlFlowError, match="bool"):
        fun.batch(PARAMS, [vectors], [Static("asks")])
