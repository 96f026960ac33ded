"""Capacities: what a plan has room for, as a value that can be printed, compared, saved and given back."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import ragged
from zoo import INPUT, Params, assert_bits, counted_compilations, gradients, named, normal, rnn_params

import jitbatch as jb
from jitbatch import Capacity, jitbatch
from jitbatch.plan.capacity import exemplar
from jitbatch.util.errors import PlanError

TREE = named("binary_tree")
PARAMS, SAMPLES = TREE.draw(5)
LEAVES = [1, 2, 3, 4, 5]
PAIRS = [(1, 2), (3, (4, 5)), (6, 1), (2, 3), 4]


def trees() -> Any:
    """The function with nothing recorded yet."""
    return jitbatch(TREE.fun)


def copied(capacity: Capacity) -> Capacity:
    return pickle.loads(pickle.dumps(capacity))


# --- A value


def test_printing() -> None:
    capacity = trees().plan(PARAMS, SAMPLES).capacity
    assert str(capacity) == ("room for 8 leaf, 12 compose, 6 binary_tree; 8 input rows; a loop of 64 rounds, 4 wide")
    assert "exemplars=" in repr(capacity)
    same = jitbatch(lambda params, x: x)
    assert str(same.plan(PARAMS, [1.0, 2.0, 3.0]).capacity) == "room for no nodes; 3 input rows"
    items = ragged.plan(rnn_params(jax.random.key(0)), [[1.0, [2.0, 3.0]], []]).capacity
    assert str(items).endswith("; 3 items")
    sums = named("child_sum_edges")
    assert " sum (" in str(sums.batched.plan(*sums.draw(3)).capacity)


def test_equality() -> None:
    """Equal whatever was recorded before, whichever samples are the exemplars, and whatever cells are called."""
    capacity = trees().plan(PARAMS, SAMPLES).capacity
    assert dataclasses.replace(capacity, cells=("a", "b", "c"), exemplars=()) == capacity
    assert isinstance(capacity, Capacity)
    other = trees()
    other.plan(PARAMS, PAIRS[::-1])
    assert other.plan(PARAMS, SAMPLES, like=None).capacity == capacity
    assert other.plan(PARAMS, SAMPLES[::-1], like=None).capacity == capacity
    assert other.plan(PARAMS, PAIRS, like=None).capacity != capacity
    assert other.plan(PARAMS, SAMPLES[:3], like=None).capacity != capacity


def two_classes(params: Params, sample: Params) -> Any:
    return jnp.tanh(params["b"]) + (sample["x"] @ params["x"] if "x" in sample else jnp.sin(sample["y"]).sum())


def test_equality_whatever_class_was_met_first() -> None:
    params = rnn_params(jax.random.key(0))
    samples = [{"x": np.ones(INPUT, np.float32)}, {"y": np.ones(2, np.float32)}]
    forwards, backwards = jitbatch(two_classes), jitbatch(two_classes)
    backwards.plan(params, samples[::-1])
    assert forwards.plan(params, samples).capacity == backwards.plan(params, samples).capacity
    programs = [jax.make_jaxpr(f.batch)(params, f.plan(params, samples)) for f in (forwards, backwards)]
    assert str(programs[0]) == str(programs[1])
    given = backwards.plan(params, samples, like=copied(forwards.plan(params, samples).capacity))
    assert given.static is backwards.plan(params, samples).static


@pytest.mark.parametrize("copies", [copied, copy.deepcopy])
def test_saving(copies: Any) -> None:
    batched = trees()
    capacity = batched.plan(PARAMS, SAMPLES).capacity
    again = copies(capacity)
    assert again == capacity
    assert str(again) == str(capacity)
    assert batched.plan(PARAMS, SAMPLES, like=again).capacity == capacity
    assert len(pickle.dumps(capacity)) < 3000


def test_exemplars_have_no_data() -> None:
    plan = jitbatch(two_classes).plan(rnn_params(jax.random.key(0)), [{"x": np.full(INPUT, 7.0, np.float32)}])
    ((sample,),) = plan.capacity.exemplars
    assert sample["x"] == jax.ShapeDtypeStruct((INPUT,), jnp.float32)
    (graph,) = plan.static.types.exemplars
    assert exemplar(graph) == (sample,)
    for (number,) in trees().plan(PARAMS, [5]).capacity.exemplars:
        assert number == 0


def test_capacities_are_for_fused_plans() -> None:
    for executor in ("dispatch", "per_sample"):
        plan = jitbatch(TREE.fun, executor=executor).plan(PARAMS, SAMPLES)
        with pytest.raises(PlanError, match=f"a plan for the {executor} executor has the sizes of its batch"):
            _ = plan.capacity


# --- Given back


@pytest.mark.parametrize("loops", ["dynamic", "static"])
def test_a_run_that_is_resumed_has_the_same_sizes_and_bits(loops: str) -> None:
    def make() -> Any:
        return jitbatch(TREE.fun, loops=loops)

    batched = make()
    first = batched.plan(PARAMS, SAMPLES)
    second = batched.plan(PARAMS, PAIRS, like=first)
    assert second.static is first.static
    run = jax.jit(lambda params, plan: gradients(lambda p, _: batched.batch(p, plan), params, []))
    with counted_compilations() as compilations:
        want = jax.block_until_ready(run(PARAMS, second))
        restored = batched.plan(PARAMS, PAIRS, like=copied(first.capacity))
        assert restored.static is second.static
        assert_bits(jax.block_until_ready(run(PARAMS, restored)), want)
    assert len(compilations) == 1

    resumed = make()  # knows nothing yet
    plan = resumed.plan(PARAMS, PAIRS, like=copied(first.capacity))
    assert plan.capacity == second.capacity
    assert_bits(jax.tree.leaves(plan), jax.tree.leaves(second))
    again = jax.jit(lambda params, plan: gradients(lambda p, _: resumed.batch(p, plan), params, []))
    lowered = again.lower(PARAMS, plan)
    assert lowered.as_text() == run.lower(PARAMS, second).as_text()  # whatever was recorded first
    assert_bits(lowered.compile()(PARAMS, plan), want)


@pytest.mark.parametrize("name", ["child_sum_edges", "dag", "shared_values", "mixed_dtypes", "dropout_keys"])
def test_given_to_a_function_that_knows_nothing(name: str) -> None:
    entry = named(name)
    params, samples = entry.draw(5)
    capacity = jitbatch(entry.fun).plan(params, samples).capacity
    small = samples[1:2]
    first, second = jitbatch(entry.fun), jitbatch(entry.fun)
    want = second.plan(params, small, like=second.plan(params, samples))
    got = first.plan(params, small, like=copied(capacity))
    assert got.capacity == want.capacity == capacity
    programs = [jax.make_jaxpr(f.batch)(params, plan) for f, plan in ((first, got), (second, want))]
    assert str(programs[0]) == str(programs[1])


def test_room_for_two() -> None:
    """A plan like another has the capacity of both, whichever comes first."""
    batched = trees()
    deep = [((((1, 2), 3), 4), 5)]
    wide = [((1, 2), (3, 4)), (5, 6), (0, 1), 3]
    one = batched.plan(PARAMS, wide, like=batched.plan(PARAMS, deep).capacity)
    other = batched.plan(PARAMS, deep, like=batched.plan(PARAMS, wide).capacity)
    assert one.static is other.static
    assert one.capacity == other.capacity
    for plan, samples in ((one, wide), (other, deep)):
        assert plan.capacity == batched.plan(PARAMS, samples, like=plan.capacity).capacity
        np.testing.assert_allclose(batched.batch(PARAMS, plan), TREE.loop(PARAMS, samples), rtol=2e-5, atol=2e-6)


def test_a_type_that_a_batch_lacks_is_part_of_its_capacity() -> None:
    batched = trees()
    capacity = batched.plan(PARAMS, SAMPLES).capacity
    leaves = batched.plan(PARAMS, LEAVES, like=copied(capacity))
    assert leaves.capacity == capacity
    assert batched.plan(PARAMS, LEAVES, like=None).capacity != capacity
    np.testing.assert_allclose(batched.batch(PARAMS, leaves), TREE.loop(PARAMS, LEAVES), rtol=2e-5, atol=2e-6)


def test_items_of_ragged_results() -> None:
    params = rnn_params(jax.random.key(0))
    large = ragged.plan(params, [[1.0, 2.0, 3.0, 4.0, 5.0], [6.0]], like=None)
    small = ragged.plan(params, [[1.0], []], like=copied(large.capacity))
    assert small.capacity.items == large.capacity.items == 6
    assert small.static is large.static
    assert [len(items) for items in ragged.batch(params, small).to_list()] == [1, 0]
    # No sample has an item: the capacity tells what one looks like.
    empty = ragged.plan(params, [[], []], like=copied(large.capacity))
    assert empty.static is large.static


def test_room_for_shards() -> None:
    batched = trees()
    capacity = batched.plan(PARAMS, SAMPLES).capacity
    assert batched.plan(PARAMS, SAMPLES[:4], shards=2, like=copied(capacity)).capacity == capacity


def test_recordings_that_were_forgotten() -> None:
    batched = trees()
    capacity = batched.plan(PARAMS, SAMPLES).capacity
    jb.clear_caches()
    assert batched.plan(PARAMS, LEAVES, like=capacity).capacity == capacity


def test_a_capacity_of_another_function_is_refused() -> None:
    params = rnn_params(jax.random.key(0))
    capacity = jitbatch(two_classes).plan(params, [{"x": normal(np.random.default_rng(0), INPUT)}]).capacity
    other = jitbatch(lambda params, sample: jnp.cos(sample["x"] @ params["x"]))
    with pytest.raises(PlanError, match=r"does not fit: the function, its shared arguments .* Plan again"):
        other.plan(params, [{"x": jnp.ones(INPUT)}], like=capacity)
    with pytest.raises(PlanError, match=r"cannot be recorded with a sample of it.* Plan again") as raised:
        trees().plan(PARAMS, SAMPLES, like=capacity)
    assert raised.value.__cause__ is not None
