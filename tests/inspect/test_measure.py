"""Timing: the fastest of several runs, compilation apart from running, and each step alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import jitbatch
from jitbatch.inspect.executed import read_back
from jitbatch.inspect.measure import best_of, time_run, time_steps


class Clock:
    """A clock that only runs advance, each by the next of these seconds."""

    def __init__(self, *seconds: float):
        self.now = 0.0
        self.remaining = list(seconds)

    def perf_counter(self) -> float:
        return self.now

    def run(self) -> None:
        self.now += self.remaining.pop(0)


def clock_of(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> Clock:
    clock = Clock(*seconds)
    monkeypatch.setattr("jitbatch.inspect.measure.time", clock)
    return clock


def test_the_fastest_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, 5.0, 1.0, 4.0)
    assert best_of(clock.run, repeats=3) == 1.0
    assert clock.remaining == []


def test_the_first_run_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert time_run(clock_of(monkeypatch, 20.0, 3.0, 2.0, 2.0, 4.0, 2.0).run) == (18.0, 2.0)


def test_a_first_run_that_is_faster_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert time_run(clock_of(monkeypatch, 1.0, 3.0, 2.0, 2.0, 4.0, 2.0).run) == (0.0, 2.0)


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
