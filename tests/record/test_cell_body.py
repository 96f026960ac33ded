"""The body of a decorated function as a leaf: its cell, its operands and what it returns."""

from __future__ import annotations

from typing import Any

import pytest
from jax import lax
from test_recorder import X, cells, inputs, product, recording, square

from jitbatch import jitbatch
from jitbatch.util.errors import OutputError


def test_equal_arguments_do_not_make_another_cell() -> None:
    with recording() as recorder:
        x, y = inputs(recorder, X, X)
        product(x, x)
    with recording() as other:
        x, y = inputs(other, X, X)
        product(x, y)
    assert cells(recorder) == cells(other)
    with recording() as recorder:
        square(*inputs(recorder, X))
    assert cells(recorder) != cells(other)


def test_arguments_that_are_returned_are_passed_on() -> None:
    @jitbatch
    def swap(x: Any, y: Any) -> Any:
        return {"y": y, "x": x, "one": 1.0, "none": None}

    with recording() as recorder:
        x, y = inputs(recorder, X, X)
        result = swap(x, y)
    assert result["x"] is x
    assert result["y"] is y
    assert (result["one"], result["none"]) == (1.0, None)
    assert recorder.ops == recorder.builder.kinds == []


def test_unused_arguments_are_no_operands() -> None:
    @jitbatch
    def second(x: Any, y: Any, z: Any) -> Any:
        lax.cos(x)
        return lax.sin(y)

    with recording() as recorder:
        x, y, z = inputs(recorder, X, X, X)
        second(x, y, z)
    assert recorder.builder.operands == [y.row]


@pytest.mark.parametrize("result", ["text", object(), print], ids=["text", "object", "function"])
def test_a_subgraph_returns_arrays(result: Any) -> None:
    @jitbatch
    def cell(x: Any) -> Any:
        return {"ok": x, "bad": [x, result]}

    with recording() as recorder, pytest.raises(OutputError, match=r"cell.* at result\['bad'\]\[1\]"):
        cell(*inputs(recorder, X))
