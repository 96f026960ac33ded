"""Timing: the fastest of several runs, compilation apart from running, and each step alone."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import zoo

from jitbatch import jitbatch
from jitbatch.inspect.executed import read_back
from jitbatch.inspect.measure import best_of, time_run, time_steps


def test_the_fastest_run_counts() -> None:
    pauses = iter([0.05, 0.01, 0.05])
    seconds = best_of(lambda: time.sleep(next(pauses)), repeats=3)
    assert 0.01 <= seconds < 0.05
    assert next(pauses, None) is None


def test_the_first_run_compiles() -> None:
    pauses = iter([0.2, 0.01, 0.01, 0.01, 0.01, 0.01])
    compiling, running = time_run(lambda: time.sleep(next(pauses)))
    assert 0.01 <= running < compiling


def test_a_first_run_that_is_faster_compiles_nothing() -> None:
    pauses = iter([0.0, 0.01, 0.01, 0.01, 0.01, 0.01])
    assert time_run(lambda: time.sleep(next(pauses)))[0] == 0.0


def test_every_step_is_timed_by_its_kind_and_width() -> None:
    workload = zoo.named("binary_tree")
    params, samples = workload.draw()
    plan = workload.batched.plan(params, samples)
    times = time_steps(plan, jax.tree.leaves(params))
    executed = read_back(plan)
    assert set(times) == {(executed.kinds[step.type], step.width) for step in executed.steps}
    assert all(step.run > 0 and step.compile >= 0 for step in times.values())


def test_sums_and_cells_with_keys_are_not_timed() -> None:
    @jitbatch
    def noise(scale: jax.Array, key: jax.Array) -> jax.Array:
        return scale * jax.random.normal(key, (2,))

    total = jitbatch(lambda scale, keys: sum(noise(scale, key) for key in keys))
    samples = [jax.random.split(jax.random.key(0), count) for count in (2, 3)]
    scale = jnp.asarray(np.ones(2, np.float32))
    assert dict(time_steps(total.plan(scale, samples), [scale])) == {}
