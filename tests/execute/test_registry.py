"""An executor is one file and one line: a toy one that runs node by node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampled import every
from zoo import WORKLOADS, Workload, assert_same

from jitbatch import jitbatch
from jitbatch.batch.analysis import Analysis
from jitbatch.execute.executor import Executor, Lowered, SizeRequest
from jitbatch.execute.memory import ProgramMemory, of_calls
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.steps import Read, Step, Write
from jitbatch.ir.tables import Kind, Tables
from jitbatch.schedule.policies import Policy
from jitbatch.util.packed import pack


@dataclass(frozen=True)
class NodeByNode:
    """A call for each node: its kind, the arenas and rows that it reads, and those that it writes."""

    nodes: tuple[tuple[Kind, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]], ...]
    sizes: None = None

    @property
    def shared(self) -> set[int]:
        return {shared_id for kind, _, _ in self.nodes for shared_id in kind.shared_ids}

    def run(self, tables: Any, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        for kind, reads, writes in self.nodes:
            rows = iter([arenas[arena][row] for arena, row in reads])
            operands = [
                next(rows) if is_row else shared[b] for is_row, b in zip(kind.vmapped, kind.binding, strict=True)
            ]
            for (arena, row), value in zip(writes, kind.cell(*operands, *rows), strict=True):
                arenas[arena] = arenas[arena].at[row].set(value)
        return arenas

    def steps(self, tables: Any) -> Iterator[Step]:
        for step_id, (kind, reads, writes) in enumerate(self.nodes):
            written = tuple(Write(arena, np.array([row])) for arena, row in writes)
            read = tuple(Read(arena, np.array([row]), np.zeros(1, int)) for arena, row in reads)
            yield Step(kind, step_id, None, 1, 1, written, read)

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[Any]) -> ProgramMemory:
        return ProgramMemory(tuple(of_calls(kind, 1) for kind, _, _ in self.nodes), sum(arena_sizes))

    def describe(self, tables: Any) -> list[str]:
        return [f"  {kind.cell.name}" for kind, _, _ in self.nodes]

    def changes(self, before: NodeByNode, tables: Tables) -> Iterator[str]:
        return iter(())


def lower(analysis: Analysis, policy: Policy, request: SizeRequest) -> Lowered:
    batch, types = analysis.batch, analysis.types
    order = analysis.nodes[np.argsort(policy.assign(analysis.problem), kind="stable")].tolist()
    value_row, rows = analysis.value_row.copy(), analysis.first_free_row.copy()
    for node in order:
        for output, class_id in enumerate(types.writes[batch.type[node]]):
            value_row[batch.first_value[node] + output] = rows[class_id]
            rows[class_id] += 1
    analysis.place_merged(value_row)
    arenas = [
        ArenaShape(c, analysis.shared_rows[c], int(analysis.packed.counts[c]), int(n)) for c, n in enumerate(rows) if n
    ]
    arena_of = {arena.value_class: arena_id for arena_id, arena in enumerate(arenas)}
    nodes = []
    for node in order:
        reads = value_row[batch.operands[batch.operand_start[node] : batch.operand_start[node + 1]]].tolist()
        kind, read, written = (column[batch.type[node]] for column in (types.kinds, types.reads, types.writes))
        read = read * len(reads) if kind.is_variadic else read
        writes = value_row[batch.first_value[node] : batch.first_value[node] + len(written)].tolist()
        pairs = [list(zip(read, reads, strict=True)), list(zip(written, writes, strict=True))]
        nodes.append((kind, *(tuple((arena_of[c], row) for c, row in rows) for rows in pairs)))
    return Lowered(NodeByNode(tuple(nodes)), pack(()), tuple(arenas), value_row, len(nodes), 0, len(nodes), len(nodes))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTORS, "node_by_node", Executor("node_by_node", lower))


@pytest.mark.parametrize("workload", every(5, WORKLOADS, name=attrgetter("name")))
def test_a_toy_executor_computes_what_the_plain_loop_does(workload: Workload) -> None:
    params, samples = workload.draw(size=2)
    batched = jitbatch(workload.fun, executor="node_by_node", policy="agenda")
    assert_same(batched.batch(params, batched.plan(params, samples)), workload.loop(params, samples))


def test_a_toy_executor_is_differentiated_and_reported() -> None:
    batched = jitbatch(lambda w, xs: sum(w * x * x for x in xs), executor="node_by_node")
    plan = batched.plan(np.float32(2.0), [(1.0, 2.0), (3.0,)])
    assert float(jax.grad(lambda w: batched.batch(w, plan).sum())(jnp.float32(2.0))) == 14.0
    assert "node_by_node" in repr(plan)
    assert plan.explain().rows == plan.summary.distinct
    assert plan.memory.inference > 0
