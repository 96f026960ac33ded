"""`jitbatch.segment`: what stacked lists compute, exact in values and gradients, one type for lists of every length."""

from __future__ import annotations

import re
from typing import Any

import attention_models  # noqa: F401  its workloads are among those of the zoo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from zoo import assert_same, gradients, named, stack

from jitbatch import jitbatch, segment
from jitbatch.util.errors import JitbatchError, SegmentError

H = 3
W = {"w": jnp.linspace(-0.9, 0.8, H * H).reshape(H, H), "q": jnp.float32([0.5, -1.0, 0.25])}


def vectors(count: int, dtype: Any = np.float32, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed + count).normal(size=(count, H)).astype(dtype))


SAMPLES = [vectors(n) for n in (1, 4, 2)]


def by_stack(xs: Any) -> dict[str, Any]:
    """What the functions mean, in jnp."""
    stacked = jnp.stack(xs)
    weights = jax.nn.softmax(stacked, axis=0)
    scores = stacked @ stacked[0] / np.sqrt(H).astype(stacked.dtype)
    return {
        "softmax": list(weights),
        "logsumexp": jax.nn.logsumexp(stacked, axis=0),
        "attend": jax.nn.softmax(scores) @ stacked,
        "scores": (weights * stacked).sum(axis=0),
        "weighted": (weights * stacked).sum(axis=0),
        "mean": stacked.mean(axis=0),
        "max": stacked.max(axis=0),
        "sum": stacked.sum(axis=0),
    }


def by_segment(xs: Any) -> dict[str, Any]:
    return {
        "softmax": segment.softmax(xs),
        "logsumexp": segment.logsumexp(xs),
        "attend": segment.attend(xs[0], xs, xs),
        "scores": segment.attend_scores(xs, xs),
        "weighted": segment.weighted_sum(segment.softmax(xs), xs),
        "mean": segment.mean(xs),
        "max": segment.max(xs),
        "sum": segment.sum(xs),
    }


# --- The plain functions


@pytest.mark.parametrize("dtype", [np.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("count", [1, 5])
def test_lists_mean_what_stacks_mean(count: int, dtype: Any) -> None:
    xs = [jnp.asarray(x, dtype) for x in vectors(count)]
    got, want = by_segment(xs), by_stack(xs)
    rtol = 1e-5 if dtype == np.float32 else 2e-2
    for name in want:
        assert jax.tree.map(lambda x: x.dtype, got[name]) == jax.tree.map(lambda x: x.dtype, want[name]), name
        assert_same(got[name], want[name], rtol=rtol, atol=rtol)


def test_tuples_and_arrays_are_lists() -> None:
    xs = vectors(4)
    for other in (tuple(xs), np.stack(xs), jnp.stack(xs)):
        assert_same(segment.softmax(other), segment.softmax(xs))
        assert_same(segment.attend(xs[0], other, other), segment.attend(xs[0], xs, xs))


def test_gradients_are_those_of_stacks() -> None:
    xs = [jnp.asarray(x) for x in [*vectors(4), *vectors(4)]]  # each twice: equal maxima

    def loss(fun: Any, xs: Any) -> Any:
        return sum((jnp.sin(3 * leaf) * (i + 1)).sum() for i, leaf in enumerate(jax.tree.leaves(fun(xs))))

    want, got = (jax.grad(lambda xs, fun=fun: loss(fun, xs))(xs) for fun in (by_stack, by_segment))
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_under_jit_and_vmap() -> None:
    xs = [jnp.stack(vectors(3, seed=s)) for s in (0, 7)]
    got = jax.jit(jax.vmap(lambda *one: segment.attend(one[0], one, one)))(*xs)
    want = [segment.attend(*([row[i] for row in xs] if k else xs[0][i] for k in range(3))) for i in range(3)]
    assert_same(got, stack(want))


@pytest.mark.parametrize(
    "numbers", [[0.0, -np.inf], [-np.inf, -np.inf], [np.inf, 1.0], [1e30, -1e30], [2.0, 2.0]], ids=str
)
def test_infinite_and_large_scores(numbers: list[float]) -> None:
    xs = [jnp.float32(number) for number in numbers]
    np.testing.assert_array_equal(segment.softmax(xs), jax.nn.softmax(jnp.stack(xs)))
    np.testing.assert_array_equal(segment.logsumexp(xs), jax.nn.logsumexp(jnp.stack(xs)))


def test_integers_and_mixed_types() -> None:
    assert_same(segment.softmax([1, 2, 4]), list(jax.nn.softmax(jnp.float32([1, 2, 4]))))
    assert_same(segment.logsumexp([np.int32(1), np.float32(0.5)]), jax.nn.logsumexp(jnp.float32([1, 0.5])))
    assert segment.mean([1, 2]) == 1.5
    assert segment.sum([np.int8(100)] * 3) == 300
    got = segment.attend_scores([1, 3], [jnp.bfloat16(2), jnp.bfloat16(4)])
    assert got.dtype == jnp.float32


def test_short_floats_do_not_overflow_on_the_way() -> None:
    values = [jnp.float16(30000.0)] * 40
    assert segment.attend_scores([jnp.float16(0)] * 40, values) == 30000
    assert segment.mean(values) == 30000


def test_values_are_pytrees_and_weights_have_heads() -> None:
    scores = [jnp.float32([0.0, 1.0]), jnp.float32([2.0, -1.0]), jnp.float32([0.5, 0.5])]
    values = [{"h": jnp.ones((2, 3)) * i, "c": (jnp.float32([i, -i]),)} for i in range(3)]
    weights = jax.nn.softmax(jnp.stack(scores), axis=0)
    got = segment.attend_scores(scores, values)
    assert_same(got["h"], jnp.einsum("nh,nhd->hd", weights, jnp.stack([value["h"] for value in values])))
    assert_same(got["c"][0], jnp.einsum("nh,nh->h", weights, jnp.stack([value["c"][0] for value in values])))
    assert_same(segment.mean(values), values[1])
    keys = [jnp.ones((2, 4)) * i for i in range(3)]
    got = segment.attend(jnp.ones((2, 4)), keys, values, scale=0.5)
    assert_same(got["h"][0, 0], (jax.nn.softmax(2.0 * jnp.arange(3)) * jnp.arange(3)).sum(), rtol=1e-5)


# --- Errors


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "mean", "max", "sum"])
def test_an_empty_list_is_an_error_that_says_what_to_do(name: str) -> None:
    with pytest.raises(SegmentError, match=rf"segment\.{name} was given an empty list at .*test_segment.py:\d+\. Say"):
        getattr(segment, name)([])
    assert issubclass(SegmentError, JitbatchError)
    assert issubclass(SegmentError, ValueError)


def test_an_empty_list_in_a_sample_names_the_users_line() -> None:
    @jitbatch
    def fun(p: Any, xs: Any) -> Any:
        return segment.attend(p["q"], xs, xs)

    with pytest.raises(SegmentError, match=r"segment\.attend was given an empty list at .*test_segment.py:\d+"):
        fun.batch(W, [SAMPLES[0], []])


def test_lists_that_do_not_fit_together() -> None:
    xs = vectors(2)
    with pytest.raises(SegmentError, match="lists of 2 and 1 elements"):
        segment.attend(xs[0], xs, xs[:1])
    with pytest.raises(SegmentError, match=re.escape("arrays of shapes [3] and [1]")):
        segment.softmax([xs[0], xs[1][:1]])
    with pytest.raises(SegmentError, match="different structures"):
        segment.mean([xs[0], (xs[1],)])
    with pytest.raises(SegmentError, match=re.escape("a weight of shape [3] and a value of shape [2]")):
        segment.weighted_sum(xs, [x[:2] for x in xs])


# --- In a batch


def mapped(p: Any, xs: Any) -> dict[str, Any]:
    results = by_segment([jnp.tanh(x @ p["w"]) * p["q"].sum() for x in xs])
    return {**results, "softmax": results["softmax"][0]}


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
@pytest.mark.parametrize("granularity", ["subgraph", "op", "graph"])
def test_batches_are_the_plain_loop(granularity: str, executor: str) -> None:
    want = gradients(lambda p, s: stack([mapped(p, x) for x in s]), W, SAMPLES, True, transform=jax.jit)
    batched = jitbatch(mapped, granularity=granularity, executor=executor)
    assert_same(gradients(batched.batch, W, SAMPLES, True, transform=jax.jit), want, rtol=1e-4, atol=1e-5)


def attended(p: Any, xs: Any) -> Any:
    hs = [jnp.tanh(x @ p["w"]) for x in xs]
    return segment.attend(p["q"] * hs[0], hs, hs) + segment.logsumexp(hs)


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_forward_mode_and_forward_over_reverse(executor: str) -> None:
    batched = jitbatch(attended, executor=executor)

    def loss(p: Any, run: Any) -> Any:
        return jnp.sin(run(p, SAMPLES)).sum()

    def loop(p: Any, samples: Any) -> Any:
        return stack([attended(p, x) for x in samples])

    plan = batched.plan(W, SAMPLES)
    direction = jax.tree.map(jnp.ones_like, W)
    for derivative in (loss, jax.grad(loss)):
        got, want = (
            jax.jvp(lambda p, run=run: derivative(p, run), (W,), (direction,))  # noqa: B023
            for run in (lambda p, _: batched.batch(p, plan), loop)
        )
        assert_same(got, want, rtol=1e-4, atol=1e-5)


def types_of(fun: Any, *lengths: int) -> int:
    return jitbatch(fun).plan(W, [vectors(n) for n in lengths], like=None).summary.types


def weighted_by_hand(p: Any, xs: Any) -> Any:
    common = jnp.tanh(xs[0] @ p["w"])
    weights = segment.softmax([common @ jnp.sin(x @ p["w"]) for x in xs])
    return sum(weight * x for weight, x in zip(weights, xs, strict=True))


def pointed_at(p: Any, xs: Any) -> Any:
    scores = [p["q"] @ x for x in xs]
    return scores[0] - segment.logsumexp(scores)


def listed(p: Any, xs: Any) -> Any:
    return segment.softmax([p["w"] @ x for x in xs])[0]


def attended_inputs(p: Any, xs: Any) -> Any:
    return segment.attend(jnp.tanh(xs[0] @ p["w"]), xs, xs)


@pytest.mark.parametrize("fun", [attended, weighted_by_hand, pointed_at, listed, attended_inputs])
def test_the_length_is_no_part_of_a_type(fun: Any) -> None:
    assert types_of(fun, 2, 3, 7, 12) == types_of(fun, 12)
    assert types_of(fun, 1, 12) == types_of(fun, 12)


def test_a_softmax_needs_four_types() -> None:
    plan = jitbatch(lambda p, xs: segment.softmax(xs)[0] * p["q"]).plan(W, SAMPLES[1:])
    assert plan.summary.types == 5  # and the product


def test_cells_that_take_a_list_are_opened() -> None:
    @jitbatch
    def cell(p: Any, x: Any, children: Any) -> Any:
        return jnp.tanh(x + segment.attend(x @ p["w"], [child @ p["w"] for child in children], children))

    def fun(p: Any, xs: Any) -> Any:
        return cell(p, xs[0], [jnp.sin(x) for x in xs])

    assert types_of(fun, 2, 3, 7, 12) == types_of(fun, 12)
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, SAMPLES)
    assert_same(gradients(jitbatch(fun).batch, W, SAMPLES), want, rtol=1e-4, atol=1e-5)


def test_infinities_and_padding_make_no_nan() -> None:
    def fun(p: Any, sample: Any) -> Any:
        xs, is_kept = sample
        scores = [jnp.where(kept, p["q"] @ x, -jnp.inf) for x, kept in zip(xs, is_kept, strict=True)]
        return segment.attend_scores(scores, xs) + segment.logsumexp(scores)

    samples = [(xs, [np.bool_(i % 2 == 0) for i in range(len(xs))]) for xs in map(vectors, (1, 4, 3, 2, 2))]
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, samples)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(want))
    for executor in ("fused", "dispatch"):
        got = gradients(jitbatch(fun, executor=executor).batch, W, samples)
        assert_same(got, want, rtol=1e-4, atol=1e-5)


# --- What people write by hand


def stable_softmax(p: Any, xs: Any) -> Any:
    scores = [p["q"] @ jnp.tanh(x @ p["w"]) for x in xs]
    largest = lax.stop_gradient(jnp.stack(scores).max())
    exponentials = [jnp.exp(score - largest) for score in scores]
    return sum(one * x for one, x in zip(exponentials, xs, strict=True)) / sum(exponentials)


def stopped_before(p: Any, xs: Any) -> Any:
    scores = [p["q"] @ x for x in xs]
    largest = jnp.max(lax.stop_gradient(jnp.stack(scores)), axis=0)
    return sum(jnp.exp(score - largest) for score in scores) * largest


def smallest(p: Any, xs: Any) -> Any:
    return lax.stop_gradient(jnp.stack([x @ p["w"] for x in xs]).min(axis=0)) * p["q"]


@pytest.mark.parametrize("fun", [stable_softmax, stopped_before, smallest])
def test_the_maximum_under_stop_gradient_is_one_operation(fun: Any) -> None:
    plan = jitbatch(fun).plan(W, [vectors(n) for n in (2, 3, 7)], like=None)
    names = [block.kind.operation for block in plan.static.program.blocks]
    assert ("min" if fun is smallest else "max") in names
    assert "maximum" not in str(plan)
    assert types_of(fun, 2, 3, 7, 12) == types_of(fun, 12)
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, SAMPLES)
    assert_same(gradients(jitbatch(fun).batch, W, SAMPLES), want, rtol=1e-4, atol=1e-5)


def test_a_maximum_that_is_read_elsewhere_keeps_its_derivative() -> None:
    def fun(p: Any, xs: Any) -> Any:
        largest = jnp.stack([x @ p["w"] for x in xs]).max(axis=0)
        return lax.stop_gradient(largest) * largest

    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, SAMPLES)
    assert_same(gradients(jitbatch(fun).batch, W, SAMPLES), want, rtol=1e-4, atol=1e-5)


def test_child_attention_is_in_a_loop() -> None:
    workload = named("child_attention_tree")
    plan = workload.batched.plan(*workload.draw(6))
    loops = [phase for phase in plan.static.program.phases if hasattr(phase, "rounds")]
    assert any(block.kind.operation == "max" for loop in loops for block in loop.blocks)
