"""Plans find room by themselves: a few sizes serve all batches, and an outlier does not make all others larger."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same

import jitbatch as jb
from jitbatch import jitbatch
from jitbatch.plan.rooms import MAX_ROOMS
from jitbatch.util.errors import ArgumentError

W = jnp.linspace(-0.5, 0.5, 9).reshape(3, 3)


@jitbatch
def cell(w: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(x @ w + y)


def chain(w: Any, xs: Any) -> Any:
    y = jnp.zeros(3)
    for x in xs:
        y = cell(w, x, y)
    return y


def chains(*lengths: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(length, 3)).astype(np.float32) for length in lengths]


def loop(samples: list[Any]) -> Any:
    return jnp.stack([chain(W, sample) for sample in samples])


def test_the_first_plan_has_the_sizes_of_its_batch() -> None:
    first, alone = (jitbatch(chain).plan(W, chains(3, 5), like=like) for like in ("auto", None))
    assert first.capacity == alone.capacity


def test_later_plans_have_at_least_its_room() -> None:
    batched = jitbatch(chain)
    large = batched.plan(W, chains(9, 8))
    small = batched.plan(W, chains(2, 3))
    assert small.static is large.static
    assert_same(batched.batch(W, small), loop(chains(2, 3)))
    assert batched.plan(W, chains(2, 3), like=None).static is not large.static
    assert batched.cache_info()["rooms"] == (1, 1, 64, 1)
    jb.clear_caches()
    assert batched.plan(W, chains(2, 3)).capacity != large.capacity


def test_room_that_grows_gets_headroom() -> None:
    batched = jitbatch(chain)
    rng = np.random.default_rng(0)
    statics = set()
    for number in range(60):
        samples = chains(*rng.integers(1, 30, size=16), seed=number)
        statics.add(batched.plan(W, samples).static)
    assert len(statics) <= 3


def test_a_batch_that_does_not_fit_is_counted_and_makes_its_room_larger_than_it_needs() -> None:
    batched = jitbatch(chain)
    lengths = [1, 8] * 8
    batched.plan(W, chains(*lengths))
    grown = batched.plan(W, chains(*(length + 3 for length in lengths)))
    assert batched.cache_info()["rooms"][:2] == (0, 2)
    alone = batched.plan(W, chains(*(length + 3 for length in lengths)), like=None)
    assert sum(room for _, room in grown.capacity.nodes) > sum(room for _, room in alone.capacity.nodes)
    assert batched.plan(W, chains(*(length + 4 for length in lengths))).static is grown.static
    assert batched.cache_info()["rooms"][:2] == (1, 2)


def test_number_of_samples_shards_and_options_have_rooms_of_their_own() -> None:
    batched = jitbatch(chain)
    batched.plan(W, chains(9, 9))
    assert batched.plan(W, chains(2, 2, 2)).capacity == jitbatch(chain).plan(W, chains(2, 2, 2)).capacity
    sharded = batched.plan(W, chains(2, 3, 2, 3), shards=2)
    assert batched.plan(W, chains(1, 1, 1, 1), shards=2).static is sharded.static
    assert batched.plan(W, chains(1, 1, 1, 1)).static is not sharded.static
    assert (
        batched.plan(W.astype(jnp.bfloat16), chains(2, 2)).capacity.nodes
        != batched.plan(W, chains(2, 2)).capacity.nodes
    )


def test_an_outlier_has_a_room_of_its_own() -> None:
    batched = jitbatch(chain)
    usual = batched.plan(W, chains(5, 5))
    outlier = batched.plan(W, chains(200, 300))
    assert outlier.static is not usual.static
    assert batched.plan(W, chains(4, 5)).static is usual.static
    assert batched.plan(W, chains(250, 150)).static is outlier.static


def test_the_smallest_room_is_given_up_for_a_further_one() -> None:
    batched = jitbatch(chain)
    smallest = batched.plan(W, chains(1, 1))
    for length in (5, 20, 80, 320):
        batched.plan(W, chains(length, length))
    (context,) = batched._planner.contexts
    (rooms,) = context.rooms
    assert rooms.info().currsize == MAX_ROOMS
    assert batched.plan(W, chains(1, 1)).static is not smallest.static


def test_explain_check_and_batch_leave_no_trace() -> None:
    batched = jitbatch(chain)
    batched.explain(W, chains(50, 50))
    batched.check(W, chains(40, 40))
    batched.batch(W, chains(30, 30))
    assert batched.plan(W, chains(2, 3)).capacity == jitbatch(chain).plan(W, chains(2, 3)).capacity
    reports = [f.explain(W, chains(50, 50)) for f in (batched, jitbatch(chain))]
    assert reports[0].cells == reports[1].cells


def test_threads_agree_on_rooms() -> None:
    batched = jitbatch(chain)
    plans: list[Any] = []

    def work(seed: int) -> None:
        for number in range(10):
            plans.append(batched.plan(W, chains(*(3 + (seed + number) % 5, 6), seed=seed)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({plan.static for plan in plans}) <= 3
    assert len(plans) == 40


def test_what_like_can_be() -> None:
    with pytest.raises(ArgumentError, match='like=3 is not a plan, the capacity of one, "auto" or None'):
        jitbatch(chain).plan(W, chains(2), like=3)  # type: ignore[arg-type]


# --- Room for a data set


def test_capacity_of_a_data_set_has_room_for_its_minibatches() -> None:
    batched = jitbatch(chain)
    rng = np.random.default_rng(1)
    data = chains(*rng.integers(1, 40, size=200))
    capacity = batched.capacity(W, data, batch_size=16)
    statics = {batched.plan(W, data[:16], like=capacity).static}
    longest = sorted(data, key=len)[-16:]
    for batch in [longest, *([data[i] for i in rng.permutation(200)[:16]] for _ in range(50))]:
        plan = batched.plan(W, batch, like=capacity)
        statics.add(plan.static)
    assert len(statics) == 1
    assert_same(batched.batch(W, plan), loop(batch))
    with pytest.raises(ArgumentError, match="batch_size=300 is not a number of samples that a minibatch can have"):
        batched.capacity(W, data, batch_size=300)


def test_capacity_of_a_data_set_of_a_method() -> None:
    class Model:
        @jitbatch
        def total(self, xs: Any) -> Any:
            return sum(xs)

    jax.tree_util.register_pytree_node(Model, lambda m: ((), None), lambda *_: Model())
    assert "sum" in str(Model().total.capacity([(1.0, 2.0), (3.0,)], batch_size=1))
