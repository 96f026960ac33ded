"""The verdict of a report: its grade, and the numbers that it gives."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import zoo

from jitbatch import jitbatch


def words(lengths: Any) -> list[Any]:
    return [np.full((length, 4), 1 + n, np.float32) for n, length in enumerate(lengths)]


@jitbatch
def pooled(scale: Any, xs: Any) -> Any:
    return jnp.take(xs, jnp.arange(2), axis=0).sum() * scale


def test_a_batch_of_one_type_is_batched() -> None:
    verdict = pooled.explain(1.0, words([3] * 8)).verdict
    assert verdict.grade == "yes"
    assert str(verdict) == "It batched. 8 calls run in 1 step (lower bound 1), 8.0 distinct calls a step."


def test_a_type_for_each_sample_is_hardly_batched() -> None:
    verdict = pooled.explain(1.0, words(range(2, 10))).verdict
    assert verdict.grade == "hardly"
    assert verdict.headline == "It hardly batched."
    assert "8 calls run in 8 steps (lower bound 8), 1.0 distinct calls a step. 100% of the time" in verdict.numbers


def test_narrow_steps_beside_wide_ones_are_batched_in_part() -> None:
    workload = zoo.named("child_sum_lists")
    verdict = workload.batched.explain(*workload.draw(12)).verdict
    assert (verdict.grade, verdict.headline) == ("partly", "It batched in part.")


def test_merged_calls_are_told() -> None:
    numbers = pooled.explain(1.0, [np.ones((3, 4))] * 8).verdict.numbers
    assert numbers == "8 calls run in 1 step (lower bound 1), 1.0 distinct calls a step."


def test_a_call_of_a_split_cell_is_one_call() -> None:
    workload = zoo.named("tagger")
    report = workload.batched.explain(*workload.draw(6))
    assert report.calls == sum(cell.calls or 0 for cell in report.cells) < report.nodes
    assert report.verdict.numbers.startswith(f"{report.calls} calls run in {report.steps} steps")


def test_one_sample_is_not_blamed() -> None:
    assert pooled.explain(1.0, words([3])).verdict.grade == "yes"


def test_each_sample_by_itself() -> None:
    verdict = jitbatch(pooled.__wrapped__, executor="per_sample").explain(1.0, words([3, 4])).verdict
    assert verdict.grade == "hardly"
    assert str(verdict) == "Each sample runs by itself. asked for by executor='per_sample'."
