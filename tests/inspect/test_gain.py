"""Predicted times of a batch, and what one type in place of several would save."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import jitbatch
from jitbatch.inspect.executed import read_back
from jitbatch.inspect.gain import Predicted
from jitbatch.tune.cost import cell_price, step_seconds, work_of

WEIGHTS = {"v": jnp.eye(4), "w": 2 * jnp.eye(4)}


@jitbatch
def layer(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


def predicted_of(fun: Any, params: Any, samples: Any) -> Predicted:
    return Predicted(read_back(jitbatch(fun).plan(params, samples)), in_one_program=True)


def side_by_side(w: Any, xs: Any) -> Any:
    return [layer(w["v"], x) for x in xs], [layer(w["w"], x) for x in xs]


def in_turn(w: Any, xs: Any) -> Any:
    return [layer(w["w"], layer(w["v"], x)) for x in xs]


SAMPLES = [np.arange(8 * n, 8 * n + 8, dtype=np.float32).reshape(2, 4) for n in range(5)]


def test_types_that_do_not_depend_on_each_other_share_steps() -> None:
    predicted = predicted_of(side_by_side, WEIGHTS, SAMPLES)
    saving = predicted.merge([[0, 1]])
    assert saving.steps == 1
    assert saving.seconds == pytest.approx(predicted.fixed(0))
    assert saving.compile == pytest.approx(predicted.compile_seconds[1])


def test_types_that_read_each_other_share_none() -> None:
    saving = predicted_of(in_turn, WEIGHTS, SAMPLES).merge([[0, 1]])
    assert (saving.steps, saving.seconds) == (0, 0.0)
    assert saving.compile > 0


def test_the_times_are_those_of_the_cost_model() -> None:
    workload = zoo.named("rnn")
    predicted = predicted_of(workload.fun, *workload.draw(40))
    executed = predicted.executed
    rows: Counter[int] = Counter()
    seconds: dict[int, float] = {}
    types = {}
    for step, number, took in zip(executed.steps, executed.step_numbers, predicted.launch_seconds, strict=True):
        rows[number] += step.width
        seconds[number] = seconds.get(number, 0.0) + took
        types[number] = step.type
    assert len(executed.steps) > len(rows), "some steps run in several launches"
    for number, took in seconds.items():
        work = work_of(executed.kinds[types[number]])
        assert took == pytest.approx(step_seconds(work, rows[number], True, predicted.costs))
    assert predicted.seconds == pytest.approx(sum(map(predicted.seconds_of, set(types.values()))))
    for type_id, price in predicted.compile_seconds.items():
        widths = len({step.width for step in executed.steps if step.type == type_id})
        assert price == pytest.approx(cell_price(work_of(executed.kinds[type_id]), widths, True, predicted.costs))


def test_a_step_with_more_rows_takes_no_less_time() -> None:
    workload = zoo.named("rnn")
    predicted = predicted_of(workload.fun, *workload.draw(40))
    executed = predicted.executed
    steps: dict[tuple[int, int], tuple[int, float]] = {}
    for step, number, took in zip(executed.steps, executed.step_numbers, predicted.launch_seconds, strict=True):
        rows, seconds = steps.get((step.type, number), (0, 0.0))
        steps[step.type, number] = rows + step.width, seconds + took
    for type_id in {type_id for type_id, _ in steps}:
        of_type = sorted(step for (other, _), step in steps.items() if other == type_id)
        times = [seconds for _, seconds in of_type]
        assert times == sorted(times)


def test_copies_of_weights_and_both_sides_of_a_branch_take_time() -> None:
    predicted = predicted_of(side_by_side, WEIGHTS, SAMPLES)
    assert predicted.rows(0) == predicted.rows(1) == 10
    assert predicted.copying([0, 1]) == pytest.approx(20 * 4 * 4 * 4 * predicted.costs.byte)
    assert predicted.computing_all([0, 1]) == pytest.approx(20 * (2 * 4 * 4 + 4) * predicted.costs.flop)
