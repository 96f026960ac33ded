"""Reports: what they count, and of which functions and lines. `test_advice` is about the advice they give."""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import zoo
from test_advice import PARAMS, X, line, projected

from jitbatch import JitbatchError, Report, jitbatch
from jitbatch.inspect.report import Advice


@pytest.fixture(scope="module")
def trees() -> tuple[Any, Any, list[Any]]:
    workload = zoo.named("binary_tree")
    return workload.batched, *workload.draw(12)


@pytest.fixture(scope="module")
def report(trees: Any) -> Report:
    batched, params, samples = trees
    return batched.explain(params, samples)


@pytest.mark.parametrize("name", ["binary_tree", "child_sum_lists", "rnn", "per_node_losses", "dag", "bare_tree_lstm"])
@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_the_cells_add_up_to_the_plan(name: str, executor: str) -> None:
    workload = zoo.named(name)
    params, samples = workload.draw(8)
    plan = jitbatch(workload.fun, executor=executor).plan(params, samples)
    report = plan.explain()
    summary = plan.summary
    parts = [part for cell in report.cells for part in cell.parts]
    assert sum(part.distinct for part in parts) == report.rows == summary.distinct
    assert sum(part.steps for part in parts) == report.steps == summary.steps
    assert sum(part.launches for part in parts) == report.launches == summary.launches == len(report.step_list)
    assert sum(cell.calls or 0 for cell in report.cells) == sum(len(graph.kind) for graph in plan.graphs)
    assert sum(step.width for step in report.step_list) == report.padded_rows
    assert report.lower_bound == sum(part.least_steps for part in parts) <= report.steps
    assert sum(part.share for part in parts) == pytest.approx(1)
    for cell in report.cells:
        assert cell.calls is not None
        assert cell.distinct <= cell.calls
    for part in parts:
        assert part.smallest_width <= part.mean_width
        assert part.mean_width == pytest.approx(part.distinct / part.steps)
        assert 0 <= part.padding < 1


@pytest.mark.parametrize("name", ["binary_tree", "tagger", "per_node_losses", "child_sum_lists"])
@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_the_steps_under_other_policies_are_those_of_their_plans(name: str, executor: str) -> None:
    workload = zoo.named(name)
    params, samples = workload.draw(8)
    told = jitbatch(workload.fun, executor=executor).explain(params, samples)
    assert told.policy.startswith(f"auto: {told.steps} steps;")
    for policy in ("depth", "agenda"):
        steps = jitbatch(workload.fun, executor=executor, policy=policy).plan(params, samples).summary.steps
        assert f"{steps} with policy={policy!r}" in told.policy


def test_launches_are_numbered_by_steps(report: Report) -> None:
    numbers = [launch.step for launch in report.step_list]
    assert sorted(set(numbers)) == list(range(report.steps))
    assert len(numbers) == report.launches
    assert {node.step for node in report.sample_nodes} <= set(numbers)
    for launch in report.step_list:
        assert len({(one.cell, one.part, one.column) for one in report.step_list if one.step == launch.step}) == 1


def test_a_cell_is_named_by_the_users_function_and_line(report: Report) -> None:
    cells = {cell.name: cell for cell in report.cells}
    assert {"leaf", "compose"} <= set(cells)
    for name in ("leaf", "compose"):
        fun = getattr(zoo, name).__wrapped__
        assert cells[name].where == f"{fun.__code__.co_filename}:{fun.__code__.co_firstlineno}"


def test_equal_jaxprs_of_two_functions_have_the_name_of_the_function_that_is_explained() -> None:
    def twin(name: str) -> Any:
        def cell(w: Any, x: Any) -> Any:
            return jnp.sin(w["w"] @ x) + 31.25

        cell.__qualname__ = name
        inner = jitbatch(cell)
        return jitbatch(lambda w, x: inner(w, x))

    for name in ("first", "second"):
        assert [cell.name for cell in twin(name).explain(PARAMS, [X, 2 * X]).cells] == [name]


def test_bare_operations_have_the_line_where_they_were_written() -> None:
    def bare(w: Any, x: Any) -> Any:
        y = jnp.tanh(x)  # the line
        return w["w"] @ (y * 2)

    (cell,) = jitbatch(bare).explain(PARAMS, [X]).cells
    assert cell.name == "bare"
    assert cell.where == line(bare, "# the line")


def test_a_sum_has_the_line_where_it_was_written() -> None:
    def added(w: Any, xs: Any) -> Any:
        terms = [projected(w, x) for x in xs]
        return sum(terms)  # the sum

    cells = jitbatch(added).explain(PARAMS, [(X, X + 1, X + 2), (X, X + 3)]).cells
    assert [cell.where for cell in cells if cell.name == "sum"] == [line(added, "# the sum")]


def test_the_equations_of_a_split_cell_are_counted_by_part() -> None:
    workload = zoo.named("rnn")
    report = workload.batched.explain(*workload.draw(6))
    (cell,) = [cell for cell in report.cells if len(cell.parts) > 1]
    names = [part.name for part in cell.parts]
    assert "hoist" in names
    assert "core" in names
    assert cell.equations("hoist") == sum(part.equations for part in cell.parts if part.name == "hoist") > 0
    assert f"{cell.equations('hoist')}/{cell.equations('core')}/" in str(report)


def test_flops_are_those_of_the_products() -> None:
    cell = jitbatch(lambda w, x: jnp.tanh(w["w"] @ x))
    (only,) = cell.explain(PARAMS, [X]).cells
    assert only.parts[0].flops == 2 * 4 * 4 + 4


def test_a_plan_explains_itself_without_its_samples(trees: Any, report: Report) -> None:
    batched, params, samples = trees
    plan = jax.tree.map(lambda leaf: leaf, batched.plan(params, samples))  # which forgets the graphs
    alone = plan.explain()
    assert [(c.name, c.calls, c.distinct) for c in alone.cells] == [(c.name, None, c.distinct) for c in report.cells]
    assert alone.operations is None
    assert "?" in str(alone)


def test_a_plan_is_explained_with_its_function(trees: Any, report: Report) -> None:
    batched, params, samples = trees
    plan = batched.plan(params, samples)
    assert batched.explain(params, plan).cells == report.cells
    restored = pickle.loads(pickle.dumps(plan))
    with pytest.raises(JitbatchError, match=r"f.explain\(params, plan\)"):
        restored.explain()
    assert [cell.distinct for cell in batched.explain(params, restored).cells] == [c.distinct for c in report.cells]


def test_measured_times_replace_estimates() -> None:
    cell = jitbatch(lambda w, x: jnp.tanh(w["w"] @ x))
    report = cell.explain(PARAMS, [X, X + 1], measure=True)
    assert report.measured
    assert report.times.run is not None
    assert report.times.compile is not None
    assert report.times.compile > report.times.run > 0
    assert "measured, each alone" in str(report)
    assert report.times.new_structures == 1
    assert cell.explain(PARAMS, [X, X + 1]).times.new_structures == 0


def test_methods_and_the_loop_executor() -> None:
    class Model:
        w = jnp.ones(4)

        @jitbatch(executor="per_sample")
        def score(self, x: Any) -> Any:
            return jnp.sum(self.w * x)

    jax.tree_util.register_pytree_node(Model, lambda m: ((), None), lambda *_: Model())
    report = Model().score.explain([X, X, X[:1]])
    assert [cell.calls for cell in report.cells] == [2, 1]
    assert "executor='per_sample'" in report.reason
    assert "loop" in str(report)


def test_effects_are_the_reason_for_another_executor() -> None:
    def noisy(w: Any, x: Any) -> Any:
        jax.debug.print("{}", x)
        return w["w"] @ x

    report = jitbatch(noisy).explain(PARAMS, [X])
    assert (report.executor, report.reason) == ("dispatch", "cells have effects")
    assert any("jax.debug.print" in advice.text for advice in report.advice)


def test_shards_are_explained_one_by_one(trees: Any) -> None:
    batched, params, samples = trees
    plan = batched.plan(params, samples, shards=2)
    with pytest.raises(JitbatchError, match=r"plan.shard\(0\).explain"):
        plan.explain()
    assert plan.shard(1).explain().samples == 6


def test_cells_are_sorted_by_what_they_take_to_compile() -> None:
    small = jitbatch(lambda w, x: w["w"] @ x)
    large = jitbatch(lambda w, x: functools.reduce(lambda y, _: jnp.tanh(w["w"] @ y), range(20), x))

    def both(w: Any, x: Any) -> Any:
        return sum(small(w, x + i) for i in range(9)) + large(w, x)

    for measure in (False, True):
        report = jitbatch(both).explain(PARAMS, [X, X], measure=measure)
        seconds = [cell.compile for cell in report.cells]
        assert seconds == sorted(seconds, reverse=True)
        assert report.cells[0].main.equations == 40
        assert seconds[0] > 0
        assert "compile" in str(report)
        assert ("compilation, by which they are sorted, estimated from equations" in str(report)) == (not measure)


def test_the_line_of_advice_is_the_users_own() -> None:
    fun = projected.__wrapped__
    where = f"{fun.__code__.co_filename}:{fun.__code__.co_firstlineno}"  # of the decorator
    assert Advice(where, "").code == "def projected(w: Any, x: Any) -> Any:"
    assert Advice(line(projected, "# the product"), "").code.startswith("return jnp.tanh")
    for nowhere in ("", "/no/such/file.py:3", f"{fun.__code__.co_filename}:99999", "<stdin>:1"):
        assert Advice(nowhere, "").code == ""


def test_a_step_of_several_launches_tells_all_of_its_samples() -> None:
    def chain(w: Any, xs: Any) -> Any:
        h = xs[0]
        for x in xs:
            h = projected(w, h + x)
        return h

    samples = [jnp.full((5, 4), n, jnp.float32) for n in range(28)]
    report = jitbatch(chain).explain(PARAMS, samples)
    launches = Counter(launch.step for launch in report.step_list)
    several = [launch for launch in report.step_list if launches[launch.step] > 1]
    assert several
    assert {launch.samples for launch in several} == {28}
