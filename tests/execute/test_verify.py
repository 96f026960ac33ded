"""The checks between passes notice a pass that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.batch.analysis import analyse
from jitbatch.execute.fused.executor import FUSED
from jitbatch.execute.registry import EXECUTORS
from jitbatch.plan import make
from jitbatch.schedule import rounds
from jitbatch.util.errors import VerifyError

W = jnp.ones(2)
XS = [jnp.ones((2, 2)), jnp.arange(6.0).reshape(3, 2)]


def chain(w: Any, xs: Any) -> Any:
    h = w
    for x in xs:
        h = jnp.tanh(h * x)
    return h


def plan() -> Any:
    return jitbatch(chain).plan(W, XS)


def test_right_passes_are_not_complained_about() -> None:
    assert plan().summary.samples == 2


class Changed:
    """A batch with some arrays in the place of its own."""

    def __init__(self, batch: Any, **arrays: Any):
        self._batch = batch
        self.__dict__.update(arrays)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


def change_batch(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], dict[str, Any]]) -> None:
    def changed(*args: Any) -> Any:
        made = analyse(*args)
        return replace(made, batch=Changed(made.batch, **change(made.batch)))

    monkeypatch.setattr(make, "analyse", changed)


def test_calls_that_are_merged_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    change_batch(monkeypatch, lambda batch: {"leader": np.zeros_like(batch.leader)})
    with pytest.raises(VerifyError, match="merged calls read the same"):
        plan()


def test_leaders_that_are_not_first(monkeypatch: pytest.MonkeyPatch) -> None:
    change_batch(monkeypatch, lambda batch: {"leader": np.full_like(batch.leader, len(batch.leader) - 1)})
    with pytest.raises(VerifyError, match="leader is the first"):
        plan()


def test_inputs_in_the_rows_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    change_batch(monkeypatch, lambda batch: {"value_row": np.where(batch.value_row < 0, -1, batch.value_row + 100)})
    with pytest.raises(VerifyError, match="in front"):
        plan()


def test_two_values_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(*args: Any) -> Any:
        lowered = FUSED.lower(*args)  # type: ignore[misc]
        return replace(lowered, value_row=np.minimum(lowered.value_row, lowered.value_row.max() - 1))

    monkeypatch.setitem(EXECUTORS, "fused", replace(FUSED, lower=overlapping))
    with pytest.raises(VerifyError, match="two values lie in one row"):
        plan()


def test_levels_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    change_batch(monkeypatch, lambda batch: {"level": batch.level - 1})
    with pytest.raises(VerifyError, match="above what it reads"):
        plan()


def test_rounds_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "rounds_of", lambda problem, members, types, policy: np.zeros(len(members), np.int64))
    with pytest.raises(VerifyError, match="after what it reads"):
        jitbatch(chain, policy="depth").plan(W, XS)
