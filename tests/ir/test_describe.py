"""Plans, capacities and reports of very many types print a screen or two."""

from __future__ import annotations

import functools
import html
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Plan, jitbatch
from jitbatch.inspect.terminal import TYPES
from jitbatch.ir.describe import MOST, largest


@functools.cache
def plan_of(executor: str) -> Plan:
    """A plan of a hundred types, of which the last has the most calls."""
    fun = jitbatch(lambda w, x: jnp.sum(jnp.tanh(w * x)), executor=executor)
    lengths = [*range(1, 101), 100, 100]
    return fun.plan(2.0, [np.full(length, float(n), np.float32) for n, length in enumerate(lengths)])


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_a_plan_of_many_types(executor: str) -> None:
    lines = str(plan_of(executor)).splitlines()
    assert lines[0] == repr(plan_of(executor))
    assert len(lines) == MOST + 2
    assert lines[-1] == f"... and {100 - MOST} more"
    assert ("x3" in lines[-2] or "x4" in lines[-2]) if executor != "per_sample" else lines[-2].endswith("99: 3 samples")


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_types_of_one_name_are_told_apart_by_their_shapes(executor: str) -> None:
    plan = plan_of(executor)
    assert "(f32[100] -> f32[])" in str(plan).replace("float32", "f32")

    @jitbatch
    def scaled(w: Any, x: Any) -> Any:
        return jnp.tanh(w * x) + 0.0625  # of no other test: cells are named by who made them first

    fun = jitbatch(lambda w, xs: sum(jnp.sum(scaled(w, x)) for x in xs), executor=executor)
    assert "scaled x" in str(fun.plan(2.0, [(1.0, 2.0)]))
    text = str(fun.plan(2.0, [(1.0, np.ones(2, np.float32))]))
    assert "scaled (float32[2] -> float32[2]) x1" in text


def test_a_capacity_of_many_types() -> None:
    text = str(plan_of("fused").capacity)
    assert text.startswith("room for ")
    assert text.count(",") == MOST
    assert f"... and {100 - MOST} more; " in text


def test_a_report_of_many_types() -> None:
    report = plan_of("fused").explain()
    assert len(report.cells) == 100
    assert len(str(report).splitlines()) < MOST + 45
    further = f"... and {100 - TYPES} more of <lambda>, with "
    assert f"\n{further}" in str(report)
    assert html.escape(further) in report._repr_html_()
    assert report._repr_html_().count("<tr>") == TYPES + 1  # of one function


def test_few_lines_are_all_there() -> None:
    assert largest([(1, "a"), (2, "b")]) == ["a", "b"]
    assert largest([]) == []


def test_a_report_says_in_what_types_of_one_function_differ() -> None:
    @jitbatch
    def scaled(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(w * x))

    fun = jitbatch(lambda w, xs: sum(scaled(w, x) for x in xs))
    report = fun.explain(2.0, [(np.ones(2, np.float32), np.ones(3, np.float32)), (np.zeros(2, np.float32),)])
    told = {cell.name: cell.differs for cell in report.cells if cell.name.startswith("scaled")}
    assert sorted(told) == ["scaled #1", "scaled #2"]
    assert sorted(told.values()) == ["`multiply` has shapes [2]", "`multiply` has shapes [3]"]
    for name, differs in told.items():
        assert f"\n  {name}: {differs}\n" in str(report)
    assert not fun.explain(2.0, [(1.0, 2.0)]).cells[0].differs
