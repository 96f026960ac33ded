"""Both cores make the same plans, bit by bit: of the zoo and of random programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import zoo
from core.cores import CORES, assert_equal_plans, planning_by
from fuzz.programs import make_program
from fuzz.trials import choices_of
from sampled import every

from jitbatch import jitbatch
from jitbatch.batch.retype import typed
from jitbatch.execute.fused.executor import refill_layout
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.schedule.policies import POLICIES

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="there is no compiled core")

OPTIONS: dict[str, dict[str, Any]] = {
    "fused": {"executor": "fused"},
    "static loops": {"executor": "fused", "loops": "static"},
    "calls apart": {"executor": "fused", "dedupe": False},
    "agenda": {"executor": "fused", "policy": "agenda"},
    "dispatch": {"executor": "dispatch"},
}


def plans(core: str, fun: Any, options: dict[str, Any], params: Any, columns: list[list[Any]]) -> list[Any]:
    """A plan of some samples, one of all of them that is like it, and one like that of the samples, now known."""
    with planning_by(core):
        batched = jitbatch(fun, **options)
        first = batched.plan(params, *(column[: max(len(column) // 2, 1)] for column in columns))
        second = batched.plan(params, *columns, like=first)
        return [first, second, batched.plan(params, *columns, like=second)]


def check(fun: Any, options: dict[str, Any], params: Any, columns: list[list[Any]]) -> None:
    native, python = (plans(core, fun, options, params, columns) for core in ("native", "python"))
    for one, other in zip(native, python, strict=True):
        assert_equal_plans(one, other)


@pytest.mark.parametrize(
    ("name", "options"), every(3, [(workload.name, options) for workload in zoo.WORKLOADS for options in OPTIONS])
)
def test_plans_of_the_zoo(name: str, options: str) -> None:
    workload = zoo.named(name)
    params, samples = workload.draw(7)
    check(workload.fun, OPTIONS[options], params, [samples])


@pytest.mark.parametrize("number", range(24))
def test_plans_of_random_programs(number: int) -> None:
    program = make_program(choices_of(11, number))
    with jax.enable_x64(True):
        names = program.load()
        columns = [list(column) for column in zip(*names["samples"], strict=True)]
        for options in ("fused", "static loops"):
            check(names["main"], {"out": "list", **OPTIONS[options]}, names["params"], columns)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("loops", ["auto", "static"])
@pytest.mark.parametrize("name", ["binary_tree", "child_sum_lists", "message_passing", "tagger", "dag"])
def test_a_program_is_filled_again(name: str, loops: str, core: str) -> None:
    """What `refill` makes for a known program is the plan that is made from scratch."""
    workload = zoo.named(name)
    params, samples = workload.draw(12)
    with planning_by(core):
        batched = jitbatch(workload.fun, executor="fused", loops=loops)
        large = batched.plan(params, samples)
        static = large.static
        small = batched.plan(params, samples[2:7], like=large)
        assert small.static is static
        layout = TableLayout(static.types, static.program, static.arenas)
        for plan, own in ((small, samples[2:7]), (large, samples)):
            leaves = [jax.tree.leaves(sample) for sample in own]
            inputs = [graph.input_rows.taken(some) for graph, some in zip(plan.graphs, leaves, strict=True)]
            filled = refill_layout(layout, typed(plan.graphs, static.types), inputs, POLICIES["auto"], dedupe=True)
            assert filled is not None
            jax.tree.map(np.testing.assert_array_equal, filled.tables, plan.tables)
            for one, other in zip(filled.inputs, plan.rows, strict=True):
                assert one is other is None or np.array_equal(one, other)
            rows = filled.output_rows.reshape(len(own), -1).T
            np.testing.assert_array_equal(rows, np.stack(plan.out_rows))
            np.testing.assert_array_equal(filled.counts, plan.counts)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("loops", ["auto", "static"])
def test_a_batch_that_does_not_fit_is_refused(loops: str, core: str) -> None:
    workload = zoo.named("binary_tree")
    params, samples = workload.draw(16)
    with planning_by(core):
        batched = jitbatch(workload.fun, executor="fused", loops=loops)
        large = batched.plan(params, samples)
        tight = batched.plan(params, samples[:4])
        static = tight.static
        layout = TableLayout(static.types, static.program, static.arenas)
        leaves = [jax.tree.leaves(sample) for sample in samples]
        inputs = [graph.input_rows.taken(some) for graph, some in zip(large.graphs, leaves, strict=True)]
        graphs = typed(large.graphs, static.types)
        assert refill_layout(layout, graphs, inputs, POLICIES["auto"], dedupe=True) is None
        assert refill_layout(layout, graphs[:4], inputs[:4], POLICIES["auto"], dedupe=True) is not None
