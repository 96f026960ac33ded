"""The types of a batch: decided for all samples at once, and a graph in terms of them computes the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.batch.analysis import analyse
from jitbatch.batch.retype import REMEMBERED, typed
from jitbatch.batch.types import Profile, find_types, types_of
from jitbatch.ir.cell import Cell

H = 2
rng = np.random.default_rng(0)
W = {
    "embed": jnp.asarray(rng.normal(size=(9, H)), jnp.float32),
    "x": jnp.asarray(rng.normal(size=(H, H)), jnp.float32),
    "h": jnp.asarray(rng.normal(size=(H, H)), jnp.float32),
    "out": jnp.asarray(rng.normal(size=(H, 3)), jnp.float32),
    "h0": jnp.float32([0.3, -0.1]),
}


@jitbatch
def cell(p: Any, token: Any, h: Any) -> Any:
    """A projection that can be hoisted, a state, and a readout that can be sunk."""
    h = jnp.tanh(p["embed"][token] @ p["x"] + h @ p["h"])
    return h, jnp.tanh(h @ p["out"])


def tagger(p: Any, tokens: Any) -> Any:
    h, loss = p["h0"], 0.0
    for token in tokens:
        h, scores = cell(p, token, h)
        loss = loss + scores.sum()
    return h, loss


def graphs_of(fun: Any, samples: list[Any], **options: Any) -> list[Any]:
    batched = jitbatch(fun, granularity="subgraph", **options)
    batched.plan(W, samples)
    (context,) = batched._planner.contexts
    return list(context.graphs)


def sentences(*lengths: int) -> list[Any]:
    draw = np.random.default_rng(1)
    return [draw.integers(9, size=length).astype(np.int32) for length in lengths]


def batch_of(graphs: list[Any], types: Any) -> Any:
    """Graphs in terms of types, joined; of samples whose leaves are zeros."""
    leaves = [[np.zeros(shape, np.int32) for shape in graph.leaf_shapes] for graph in graphs]
    inputs = [graph.input_rows.taken(own) for graph, own in zip(graphs, leaves, strict=True)]
    return analyse(graphs, inputs, types, dedupe=False).batch


def names(types: Any) -> list[str]:
    return sorted(kind.cell.name.split(".", 1)[-1] for kind in types.kinds)


def counts(plan: Any) -> dict[str, int]:
    """How many nodes of each type a plan runs."""
    found: dict[str, int] = {}
    for phase, table in zip(plan.static.program.phases, plan.tables.unpack(), strict=True):
        blocks = phase.blocks if hasattr(phase, "blocks") else [phase.block]
        for block, total in zip(blocks, np.ravel(table["total"]), strict=True):
            found[block.kind.cell.name] = found.get(block.kind.cell.name, 0) + int(total)
    return found


# --- Parts of cells


def test_a_cell_in_a_loop_is_split_for_the_fused_executor() -> None:
    graphs = graphs_of(tagger, sentences(2, 4))
    profile = Profile().union(graphs)
    whole, parts = (types_of(profile, graphs, split) for split in (False, True))
    assert [name.split(".")[-1] for name in names(parts)].count("hoist") == 1
    assert len(parts.kinds) > len(whole.kinds)
    in_loops = [parts.kinds[t].cell.name for members, is_loop in parts.phases if is_loop for t in members]
    assert in_loops == ["cell.core"]


def test_a_hoist_is_computed_once_for_each_token() -> None:
    samples = sentences(5, 8, 8)
    plan = jitbatch(tagger, executor="fused").plan(W, samples)
    distinct = len(np.unique(np.concatenate(samples)))
    assert counts(plan)["cell.hoist"] == distinct
    assert counts(plan)["cell.core"] == counts(plan)["cell.sink"] == 21
    other = jitbatch(tagger, executor="fused").plan(W, [np.full(7, 3, np.int32), np.full(4, 3, np.int32)])
    assert counts(other)["cell.hoist"] == 1
    assert counts(other)["cell.core"] == 7  # the shorter sentence is the beginning of the longer one


def test_without_dedupe_every_node_has_its_own_parts() -> None:
    plan = jitbatch(tagger, executor="fused", dedupe=False).plan(W, sentences(5, 8))
    assert counts(plan)["cell.hoist"] == counts(plan)["cell.core"] == 13


@pytest.mark.parametrize("dedupe", [True, False])
def test_parts_together_are_the_cell(dedupe: bool) -> None:
    samples = sentences(1, 5, 3)
    want = gradients(lambda p, s: stack([tagger(p, x) for x in s]), W, samples, transform=jax.jit)
    for executor in ("fused", "dispatch"):
        batched = jitbatch(tagger, executor=executor, dedupe=dedupe)
        got = gradients(batched.batch, W, samples, transform=jax.jit)
        assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_a_loop_that_waits_for_nothing() -> None:
    """All that the next call reads is hoisted: the core makes nothing."""

    @jitbatch
    def step(p: Any, x: Any, h: Any) -> Any:
        return jnp.tanh(p["embed"][x] @ p["x"]), jnp.tanh(h @ p["h"])

    def fun(p: Any, tokens: Any) -> Any:
        h, seen = p["h0"], []
        for token in tokens:
            h, y = step(p, token, h)
            seen.append(y)
        return h, sum(seen)

    samples = sentences(1, 4)
    want = gradients(lambda p, s: stack([fun(p, x) for x in s]), W, samples, transform=jax.jit)
    got = gradients(jitbatch(fun, executor="fused").batch, W, samples, transform=jax.jit)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


# --- Types are those of the whole batch


def test_types_do_not_depend_on_the_order_of_samples() -> None:
    graphs = graphs_of(tagger, sentences(1, 2, 4))
    for split in (False, True):
        there = types_of(Profile().union(graphs), graphs, split)
        back = types_of(Profile().union(graphs[::-1]), graphs[::-1], split)
        assert there is back  # decided once


def test_many_types_are_decided_without_comparing_each_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(power: int) -> Any:
        return jitbatch(lambda p, x: jax.lax.integer_pow(x, power))

    cells = [raised(2 + number) for number in range(80)]
    compared = 0
    is_equal = Cell.__eq__

    def counted(cell: Cell, other: object) -> bool:
        nonlocal compared
        compared += 1
        return is_equal(cell, other)

    def comparisons(size: int) -> int:
        nonlocal compared
        graphs = graphs_of(lambda p, x: sum(cell(p, x) for cell in cells[:size]), [np.ones(H, np.float32)])
        compared = 0
        with monkeypatch.context() as patch:
            patch.setattr(Cell, "__eq__", counted)
            find_types(Profile().union(graphs), graphs, True)
        return compared

    assert comparisons(80) <= 3 * comparisons(40)


def test_a_profile_grows_by_what_is_new() -> None:
    graphs = graphs_of(tagger, sentences(1, 2, 4))
    profile = Profile()
    for graph in graphs:
        profile = profile.union([graph])
    assert profile == Profile().union(graphs) == profile.union(graphs)
    assert profile.kinds == tuple(sorted(set(profile.kinds)))
    assert profile.edges == tuple(sorted(set(profile.edges)))


def test_types_are_in_the_order_of_phases() -> None:
    graphs = graphs_of(tagger, sentences(1, 4))
    for split in (False, True):
        types = types_of(Profile().union(graphs), graphs, split)
        placed = [t for members, _ in types.phases for t in members]
        assert sorted(placed) == list(range(len(types.kinds)))
        assert len(types.origins) == len(types.kinds)
        assert [types.of_kind[graphs[0].tables.kind(k.cell, k.binding)] for k in types.kinds] == list(
            range(len(types.kinds))
        )
        phase_of = {t: number for number, (members, _) in enumerate(types.phases) for t in members}
        batch = batch_of(graphs, types)
        reader = np.repeat(np.arange(len(batch.type)), np.diff(batch.operand_start))
        for node, read in zip(reader, batch.producer[batch.operands], strict=True):
            if read >= 0:
                ours, theirs = (phase_of[batch.type[n]] for n in (node, read))
                assert theirs <= ours


# --- Graphs in terms of types


def test_a_graph_in_terms_of_types_is_a_graph() -> None:
    graphs = graphs_of(tagger, sentences(1, 2, 4))
    for split in (False, True):
        types = types_of(Profile().union(graphs), graphs, split)
        typed_graphs = typed(graphs, types)
        assert all(again is one for again, one in zip(typed(graphs, types), typed_graphs, strict=True))  # remembered
        for graph in graphs:
            alone = batch_of([graph], types)
            assert np.all(alone.type >= 0)
            assert len(alone.outputs) == len(graph.outputs)
            for node, kind in enumerate(alone.type):
                reads = alone.producer[alone.operands[slice(*alone.operand_start[node : node + 2])]]
                assert np.all(reads < node)
                assert alone.level[node] == max((alone.level[r] + 1 for r in reads if r >= 0), default=0)
                if not types.kinds[kind].is_variadic:
                    assert len(reads) == types.kinds[kind].rows


def test_layers_are_counted_within_loops() -> None:
    graphs = graphs_of(tagger, sentences(1, 2, 4))
    types = types_of(Profile().union(graphs), graphs, True)
    in_loop = {t for members, is_loop in types.phases for t in members if is_loop}
    assert in_loop
    batch = batch_of(graphs, types)

    def below(node: int, kind: int) -> int:
        """How many nodes of a type lie on a path up to a node, itself included."""
        reads = batch.producer[batch.operands[slice(*batch.operand_start[node : node + 2])]]
        return max((below(int(r), kind) for r in reads if r >= 0), default=0) + int(batch.type[node] == kind)

    for node, kind in enumerate(batch.type.tolist()):
        assert batch.rank[node] == (below(node, kind) - 1 if kind in in_loop else 0)


def test_a_graph_remembers_a_few_decisions() -> None:
    samples = [[np.ones(H, np.float32)] * n for n in range(2, 2 + 2 * REMEMBERED)]

    def fun(p: Any, xs: Any) -> Any:
        h = p["h0"]
        for x in xs:
            h = jnp.tanh(h @ p["h"]) + jnp.full((len(xs), H), 0.5).sum(0) * x
        return h

    batched = jitbatch(fun)
    want = stack([fun(W, xs) for xs in samples])
    plan = None
    for n in range(1, len(samples)):
        plan = batched.plan(W, [samples[0], samples[n]])
    assert_same(batched.batch(W, plan), want[np.array([0, -1])])
    (context,) = batched._planner.contexts
    assert all(len(graph.typed) <= REMEMBERED for graph in context.graphs)


def test_plans_alike_share_types_and_a_program() -> None:
    batched = jitbatch(tagger, executor="fused")
    plan = batched.plan(W, sentences(6, 8))
    other = batched.plan(W, sentences(2, 3), like=plan)
    assert other.static == plan.static
    samples = sentences(2, 3)
    assert_same(batched.batch(W, other), stack([tagger(W, s) for s in samples]))
    grown = batched.plan(W, sentences(20), like=plan)
    assert_same(batched.batch(W, grown), stack([tagger(W, s) for s in sentences(20)]))


def test_nodes_whose_outputs_are_read_differently_are_one_type() -> None:
    def fun(p: Any, tokens: Any) -> Any:
        h, scores = cell(p, tokens[0], p["h0"])
        for token in tokens[1:]:
            h, _ = cell(p, token, h)
        return (h, scores) if len(tokens) > 1 else (h, scores * 2)

    samples = sentences(1, 2, 5)
    plan = jitbatch(fun, executor="dispatch").plan(W, samples)
    assert len({step.kind for step in plan.static.program.step_shapes if step.kind.cell.name == "cell"}) == 1
    for executor in ("fused", "dispatch"):
        assert_same(jitbatch(fun, executor=executor).batch(W, samples), stack([fun(W, s) for s in samples]))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0), (1, 0, 1)])
def test_a_shared_operand_is_a_row_where_any_call_has_a_row(order: tuple[int, ...]) -> None:
    def fun(p: Any, sample: Any) -> Any:
        token, x = sample
        return [cell(p, token, (p["h0"], x)[which])[0] for which in order]

    samples = [(np.int32(token), np.float32([token, 1])) for token in (3, 5)]
    batched = jitbatch(fun, executor="dispatch")
    assert len(batched.plan(W, samples).static.program.step_shapes) == 1
    assert_same(batched.batch(W, samples), stack([fun(W, s) for s in samples]))
