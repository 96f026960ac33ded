"""The checks between passes notice a pass that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.batch import analysis
from jitbatch.execute.fused import lower
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


def test_calls_that_are_merged_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "merge_calls", lambda batch, *_: np.zeros(len(batch.type), np.int64))
    with pytest.raises(VerifyError, match="merged calls read the same"):
        plan()


def test_leaders_that_are_not_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "merge_calls", lambda batch, *_: np.full(len(batch.type), len(batch.type) - 1))
    with pytest.raises(VerifyError, match="leader is the first"):
        plan()


def test_inputs_in_the_rows_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = analysis.pack_inputs
    monkeypatch.setattr(analysis, "pack_inputs", lambda *args: replace(pack(*args), row=pack(*args).row + 100))
    with pytest.raises(VerifyError, match="in front"):
        plan()


def test_two_values_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(*args: Any) -> Any:
        lowered = original(*args)
        return replace(lowered, value_row=np.minimum(lowered.value_row, lowered.value_row.max() - 1))

    original = lower.lower
    monkeypatch.setattr(lower, "lower", overlapping)
    with pytest.raises(VerifyError, match="two values lie in one row"):
        plan()


def test_pieces_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(graphs: Any, types: Any) -> Any:
        pieces = original(graphs, types)
        return [replace(piece, nodes=piece.nodes - np.eye(8, dtype=int)[1][:, None]) for piece in pieces]

    original = analysis.typed
    monkeypatch.setattr(analysis, "typed", typed)
    with pytest.raises(VerifyError, match="above what it reads"):
        plan()


def test_rounds_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "rounds_of_layers", lambda layers, needs: np.zeros((len(layers), max(layers)), int))
    with pytest.raises(VerifyError, match="after what it reads"):
        plan()
