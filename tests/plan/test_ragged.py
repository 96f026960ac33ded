"""Ragged outputs: the plain loop's values and gradients, whatever the items are, and one program for all topologies."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import (
    INPUT,
    Params,
    assert_same,
    counted_compilations,
    normal,
    random_tree,
    rnn_cell,
    rnn_params,
    run_rnn,
)

from jitbatch import JitbatchError, Plan, Ragged, Static, clear_caches, jitbatch

EXECUTORS = ("fused", "dispatch")
PARAMS = rnn_params(jax.random.key(0))


class Scores(NamedTuple):
    logits: Any
    best: Any


def sentences(*lengths: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [normal(rng, length, INPUT) for length in lengths]


def trees(*leaves: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [random_tree(rng, count, lambda: normal(rng, INPUT)) for count in leaves]


def states(params: Params, xs: Any) -> list[Any]:
    """An array for each word."""
    return run_rnn(params, params["h0"], xs)


def tags(params: Params, xs: Any) -> list[Any]:
    """A dict for each word."""
    return [{"h": h, "best": jnp.argmax(h), "norm": h @ h} for h in states(params, xs)]


def pairs(params: Params, xs: Any) -> tuple[Any, ...]:
    """A named tuple for each word."""
    return tuple(Scores(h @ params["h"], h[0]) for h in states(params, xs))


def two_each(params: Params, xs: Any) -> list[Any]:
    """A pair for each word: in a list, a tuple is an item."""
    return [(h, jnp.sum(h)) for h in states(params, xs)]


def nested(params: Params, tree: Any) -> Any:
    """A tree of states: that of a node before those of its children."""
    if not isinstance(tree, tuple):
        return rnn_cell(params, tree, params["h0"])
    left, right = (nested(params, child) for child in tree)
    first = left[0] if isinstance(left, tuple) else left
    return rnn_cell(params, jnp.ones(INPUT), first), left, None, right


CASES: dict[str, tuple[Any, list[Any]]] = {
    "arrays": (states, sentences(3, 0, 1, 5)),
    "dicts": (tags, sentences(2, 4, 0)),
    "named tuples in a tuple": (pairs, sentences(1, 0, 3)),
    "tuples in a list": (two_each, sentences(3, 2)),
    "nested trees": (nested, trees(4, 1, 3)),
    "items that are not computed": (lambda params, xs: list(xs), sentences(2, 1)),
    "shared items": (lambda params, xs: [params["h"][0] for _ in xs], sentences(2, 1)),
    "one item each": (lambda params, xs: states(params, xs)[-1], sentences(3, 2)),
}


def loss_of_list(results: list[Any]) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum((jnp.sum(jnp.sin(leaf)) for leaf in leaves), jnp.zeros(()))


def loss_of_ragged(ragged: Ragged) -> Any:
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(ragged.rows):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            mask = ragged.mask.reshape(-1, *([1] * (leaf.ndim - 1)))
            total += jnp.sum(jnp.where(mask, jnp.sin(leaf), 0))
    return total


# --- The plain loop's results


@pytest.mark.parametrize(
    "planned", [pytest.param(True, id="plan"), pytest.param(False, id="samples", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_loop(name: str, executor: str, planned: bool) -> None:
    fun, samples = CASES[name]
    batched = jitbatch(fun, executor=executor, out="ragged")
    given: Any = batched.plan(PARAMS, samples) if planned else samples
    want = [fun(PARAMS, sample) for sample in samples]
    got = batched.batch(PARAMS, given)
    assert isinstance(got, Ragged)
    assert_same(got.to_list(), want)

    def looped(params: Params) -> Any:
        return loss_of_list([fun(params, sample) for sample in samples])

    def ragged(params: Params) -> Any:
        return loss_of_ragged(batched.batch(params, given))

    for transform in (lambda f: f, jax.jit):
        assert_same(transform(jax.value_and_grad(ragged))(PARAMS), jax.value_and_grad(looped)(PARAMS))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_know_their_sample_and_position(executor: str) -> None:
    batched = jitbatch(states, executor=executor, out="ragged")
    samples = sentences(3, 0, 1, 5)
    got = batched.batch(PARAMS, batched.plan(PARAMS, samples))
    np.testing.assert_array_equal(got.mask, [True] * 9 + [False] * 3)
    np.testing.assert_array_equal(got.sample, [0, 0, 0, 2, 3, 3, 3, 3, 3, 3, 3, 3])
    np.testing.assert_array_equal(got.position, [0, 1, 2, 0, 0, 1, 2, 3, 4, 4, 4, 4])
    assert (got.sample.dtype, got.position.dtype, got.mask.dtype) == (np.int32, np.int32, np.bool_)
    for row, sample, position in zip(got.rows, got.sample, got.position, strict=True):  # those of padding too
        assert_same(row, states(PARAMS, samples[sample])[position])


def test_sums_leave_padding_out() -> None:
    batched = jitbatch(tags, out="ragged")
    samples = sentences(3, 0, 1, 5)
    got = batched.batch(PARAMS, samples)
    assert len(got.mask) > got.mask.sum()
    sums = got.sum()
    for index, sample in enumerate(samples):
        own = tags(PARAMS, sample)
        for name in ("h", "best", "norm"):
            want = sum((item[name] for item in own), jnp.zeros_like(got.rows[name][0]))
            np.testing.assert_allclose(sums[name][index], want, rtol=1e-5)


def test_padding_does_not_poison_gradients() -> None:
    """Zeros would: the square root has no derivative there."""
    batched = jitbatch(lambda scale, xs: [scale * x for x in xs], out="ragged")
    samples = [(1.0, 2.0, 3.0), (4.0, 5.0)]
    plan = batched.plan(jnp.float32(2), samples)

    def loss(scale: Any) -> Any:
        got = batched.batch(scale, plan)
        return jnp.sum(jnp.where(got.mask, jnp.sqrt(got.rows), 0))

    want = jax.grad(lambda scale: sum(jnp.sqrt(scale * x) for xs in samples for x in xs))(jnp.float32(2))
    np.testing.assert_allclose(jax.grad(loss)(jnp.float32(2)), want, rtol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_parameters_can_be_mapped(executor: str) -> None:
    batched = jitbatch(states, executor=executor, out="ragged")
    samples = sentences(3, 0, 2)
    plan = batched.plan(PARAMS, samples)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), PARAMS)
    got = jax.vmap(lambda params: batched.batch(params, plan))(many)
    for index in range(2):
        params = jax.tree.map(lambda leaf, index=index: leaf[index], many)
        one = jax.tree.map(lambda leaf, index=index: leaf[index], got)
        assert_same(one.to_list(), [states(params, sample) for sample in samples])


def test_a_gradient_in_the_samples() -> None:
    batched = jitbatch(states, out="ragged")
    samples = sentences(3, 0, 2)
    got = jax.grad(lambda samples: loss_of_ragged(batched.batch(PARAMS, samples)))(samples)
    assert_same(got, jax.grad(lambda samples: loss_of_list([states(PARAMS, s) for s in samples]))(samples))


# --- Programs do not depend on the topology


def test_one_program_for_every_topology() -> None:
    batched = jitbatch(nested, out="ragged")
    losses = jax.jit(lambda params, plan: (loss_of_ragged(batched.batch(params, plan)), batched.batch(params, plan)))
    first = batched.plan(PARAMS, trees(5, 1, 4))
    losses(PARAMS, first)
    for leaves, seed in (((5, 1, 4), 1), ((2, 5, 3), 2)):
        samples = trees(*leaves, seed=seed)
        plan = batched.plan(PARAMS, samples, like=first)
        with counted_compilations() as compilations:
            loss, got = losses(PARAMS, plan)
        assert not compilations
        want = [nested(PARAMS, sample) for sample in samples]
        np.testing.assert_allclose(loss, loss_of_list(want), rtol=1e-5)
        assert_same(got.to_list(), want)  # nested as this plan's samples are, not as the first's


def test_like_keeps_the_number_of_rows() -> None:
    batched = jitbatch(states, out="ragged")
    large = batched.plan(PARAMS, sentences(3, 8))
    small = batched.plan(PARAMS, sentences(1, 2), like=large)
    assert [row.shape for row in small.out_rows] == [row.shape for row in large.out_rows] == [(12,)]
    assert len(batched.plan(PARAMS, sentences(1, 20), like=large).out_rows[0]) == 24
    assert_same(batched.batch(PARAMS, small).to_list(), [states(PARAMS, xs) for xs in sentences(1, 2)])


def test_a_batch_without_items_like_one_that_has_some() -> None:
    batched = jitbatch(states, out="ragged")
    plan = batched.plan(PARAMS, sentences(0, 0), like=batched.plan(PARAMS, sentences(2, 1)))
    got = batched.batch(PARAMS, plan)
    assert got.to_list() == [[], []]
    assert got.rows.shape == (3, PARAMS["h0"].shape[0])
    assert not got.mask.any()


def test_no_samples() -> None:
    batched = jitbatch(tags, out="ragged")
    with pytest.raises(JitbatchError, match="no earlier batch tells what its output looks like"):
        batched.batch(PARAMS, [])
    batched.batch(PARAMS, sentences(2, 1))
    got = batched.batch(PARAMS, [])
    assert got.to_list() == []
    assert got.rows["h"].shape == (0, PARAMS["h0"].shape[0])


def test_a_ragged_is_a_pytree() -> None:
    batched = jitbatch(tags, out="ragged")
    got = batched.batch(PARAMS, sentences(2, 1))
    doubled = jax.tree.map(lambda leaf: leaf, got)
    assert isinstance(doubled, Ragged)
    assert_same(doubled.to_list(), got.to_list())
    again = jax.jit(lambda ragged: ragged)(got)
    assert_same(again.to_list(), got.to_list())
    clear_caches()
    assert_same(again.to_list(), got.to_list())


def test_the_list_is_made_outside_of_jit() -> None:
    batched = jitbatch(states, out="ragged")
    plan = batched.plan(PARAMS, sentences(2, 1))

    @jax.jit
    def run(params: Params, plan: Plan) -> Any:
        return batched.batch(params, plan).to_list()

    with pytest.raises(JitbatchError, match="call to_list outside"):
        run(PARAMS, plan)


# --- What cannot be ragged


def test_items_of_different_shapes_are_named() -> None:
    def fun(params: Params, sample: Any) -> Any:
        sizes, _ = sample
        return [jnp.full(size, params["h0"][0]) for size in sizes.value]

    batched = jitbatch(fun, out="ragged")
    samples = [(Static(sizes), 1.0) for sizes in ((), (2, 2), (2, 3))]
    with pytest.raises(JitbatchError) as error:
        batched.batch(PARAMS, samples)
    assert "sample 2 has the item float32[3] at [1], but the first item of sample 1 is float32[2]" in str(error.value)
    assert "return a list of its rows" in str(error.value)


def test_an_array_of_varying_length_is_not_ragged() -> None:
    batched = jitbatch(lambda params, xs: jnp.tanh(xs), out="ragged")
    with pytest.raises(JitbatchError) as error:
        batched.batch(PARAMS, sentences(2, 3))
    assert "sample 1 has the item float32[3, 3], but the first item of sample 0 is float32[2, 3]" in str(error.value)
    assert 'an array of varying length is one value; return a list of its rows, or use out="list"' in str(error.value)


def test_items_of_different_structure_are_named() -> None:
    def fun(params: Params, xs: Any) -> Any:
        return {"states": states(params, xs), "last": xs[-1]}

    with pytest.raises(JitbatchError) as error:
        jitbatch(fun, out="ragged").plan(PARAMS, sentences(1, 2))
    assert "sample 1 has the item {last: float32[3], states: [float32[" in str(error.value)
    assert "anything else is one item. Return equal items, e.g. a list of dicts" in str(error.value)


def test_a_batch_without_any_item_is_refused() -> None:
    batched = jitbatch(states, out="ragged")
    with pytest.raises(JitbatchError, match="no sample of the batch has an item"):
        batched.plan(PARAMS, sentences(0, 0))
