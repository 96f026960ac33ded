"""What a plan runs can be read back from its tables."""

from __future__ import annotations

import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import Static, jitbatch
from jitbatch.batch.analysis import Analysis, analyse
from jitbatch.inspect.executed import read_back
from jitbatch.ir.ranks import longest_paths
from jitbatch.plan import make
from jitbatch.record.shared_arguments import SharedArguments

NAMES = [
    "binary_tree", "child_sum_lists", "per_node_losses", "message_passing", "dag", "tagger", "rnn", "running_totals",
    "static_operators", "multi_output_cells", "losses_through_recursion",
]  # fmt: skip


def planned(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> tuple[Any, Analysis]:
    """A plan, and the analysis that it was made from."""
    analyses: list[Analysis] = []

    def remember(*args: Any) -> Analysis:
        analyses.append(analyse(*args))
        return analyses[-1]

    monkeypatch.setattr(make, "analyse", remember)
    workload = zoo.named(name)
    params, samples = workload.draw(6)
    plan = jitbatch(workload.fun, **options).plan(params, samples)
    return plan, analyses[-1]


@pytest.mark.parametrize("options", [{"executor": "fused"}, {"executor": "dispatch"}, {"loops": "static"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_plan_runs_is_what_was_analysed(monkeypatch: pytest.MonkeyPatch, name: str, options: Any) -> None:
    plan, analysis = planned(monkeypatch, name, **options)
    executed, problem = read_back(plan), analysis.problem
    assert len(executed.steps) == plan.summary.launches
    assert sum(step.count for step in executed.steps) == plan.summary.distinct == len(executed.node_type)
    for number, kind in enumerate(executed.kinds):
        assert np.sum(executed.node_type == number) == np.sum(problem.type == analysis.types.kinds.index(kind))

    # Equal graphs have as many edges between each pair of types, and as many nodes of each type on each level.
    def census(types: np.ndarray, kinds: Any, reader: np.ndarray, read: np.ndarray) -> list[Any]:
        names = np.array([f"{kind.cell.digest} {kind.binding}" for kind in kinds])[types]
        return sorted(zip(names[reader].tolist(), names[read].tolist(), strict=True))

    assert census(executed.node_type, executed.kinds, executed.reader, executed.read) == census(
        problem.type, analysis.types.kinds, problem.reader, problem.read
    )
    level = longest_paths(problem.level, problem.reader, problem.read)
    assert np.bincount(executed.problem.level).tolist() == np.bincount(level).tolist()
    # Nodes run after what they read; a step's nodes are of its type and do not read each other.
    assert np.all(executed.node_step[executed.reader] > executed.node_step[executed.read])
    for number, step in enumerate(executed.steps):
        nodes = np.flatnonzero(executed.node_step == number)
        assert nodes.tolist() == list(range(step.first, step.first + step.count))
        assert set(executed.node_type[nodes]) <= {step.type}
        assert step.count <= step.width
    assert sum(executed.least_steps) <= len(executed.steps)


def test_the_nodes_of_each_sample_are_those_of_its_own_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = planned(monkeypatch, "binary_tree", dedupe=False)
    executed = read_back(plan)
    nodes = [executed.of_sample(sample) for sample in range(6)]
    assert sorted(node for own in nodes for node in own) == list(range(len(executed.node_type)))
    params, samples = zoo.named("binary_tree").draw(6)
    for own, sample in zip(nodes, samples, strict=True):
        alone = read_back(jitbatch(zoo.named("binary_tree").fun, dedupe=False).plan(params, [sample]))
        assert len(own) == len(alone.node_type)


@pytest.mark.parametrize("out", ["list", "ragged"])
def test_samples_with_results_of_other_forms(out: str) -> None:
    each = jitbatch(lambda w, xs: [jnp.tanh(w * x) for x in xs], out=out)
    executed = read_back(each.plan(1.0, [(1.0, 2.0), (), (3.0, 1.0, 4.0)]))
    assert [len(executed.of_sample(sample)) for sample in range(3)] == [2, 0, 3]
    assert len(executed.node_type) == 4  # 1.0 occurs twice


def test_the_least_steps_are_those_of_chains_of_each_type() -> None:
    @jitbatch
    def one(w: Any, x: Any) -> Any:
        return jnp.sin(w * x)

    @jitbatch
    def two(w: Any, x: Any) -> Any:
        return jnp.cos(w * x)

    def chain(w: Any, sample: Any) -> Any:
        ops, x = sample
        for op in ops.value:
            x = (one if op == "1" else two)(w, x)
        return x

    batched = jitbatch(chain, executor="dispatch")
    samples = [(Static("1112"), 1.0), (Static("2221"), 2.0)]
    executed = read_back(batched.plan(1.0, samples))
    assert sorted(executed.least_steps) == [3, 3]


def test_a_plan_that_was_unpickled_can_be_read_back() -> None:
    workload = zoo.named("binary_tree")
    params, samples = workload.draw()
    plan = workload.batched.plan(params, samples)
    restored = pickle.loads(pickle.dumps(plan))
    attached = workload.batched._planner.ready(restored, SharedArguments((params,)))
    one, other = read_back(plan), read_back(attached)
    assert one.node_type.tolist() == other.node_type.tolist()
    assert one.read.tolist() == other.read.tolist()
