"""The cost model: what batches need, and what is predicted for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.ir.graph import Graph
from jitbatch.methods.batched import Batched
from jitbatch.record.context import Structure
from jitbatch.tune.cost import (
    ON_ACCELERATOR,
    ON_CPU,
    Load,
    cell_price,
    dispatch_seconds,
    fused_seconds,
    known_costs,
    load_of,
    per_sample_seconds,
    step_seconds,
    structures_price,
    whole_seconds,
    work_of,
)

WIDTH = 8


@jitbatch
def cell(weights: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(x @ weights + y)


@jitbatch
def chain(weights: Any, xs: list[Any]) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = cell(weights, x, y)
    return y


WEIGHTS = jnp.ones((WIDTH, WIDTH))


def chains(*lengths: int) -> list[list[Any]]:
    return [[np.full(WIDTH, i, np.float32) for i in range(length)] for length in lengths]


def graphs_of(fun: Batched[..., Any], shared: Any, samples: list[Any]) -> list[Graph]:
    plan = fun.plan(shared, samples)
    (context,) = fun._planner.contexts
    assert plan.static.tables is context.tables
    by_structure = {graph.structure: graph for graph in context.graphs}
    return [by_structure[one] for one in map(structure_key, samples)]


def structure_key(sample: Any) -> Any:
    return Structure((sample,), 0, ["sample"]).key


def load(*lengths: int) -> Load:
    return load_of(graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(*lengths)))


def test_work_of_a_node() -> None:
    (graph,) = graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(2))
    work = work_of(graph.tables.kinds[int(graph.kind[0])])
    assert work.flops == 2 * WIDTH * WIDTH + 2 * WIDTH
    assert (work.row_bytes, work.bound_bytes) == (3 * 4 * WIDTH, 4 * WIDTH * WIDTH)


def test_load_of_a_batch() -> None:
    got = load(4, 4, 6)
    assert (got.samples, got.structures, got.kinds) == (3, 2, 1)
    assert got.nodes == 3 + 3 + 5
    assert got.steps == 5
    one = 4 * WIDTH * WIDTH
    assert (got.step_bytes, got.sample_bytes, got.structure_bytes) == (5 * one, 11 * one, 8 * one)
    assert not got.has_effects


def test_samples_are_fastest_alone_where_no_two_nodes_share_a_type() -> None:
    def layers(params: list[Any], x: Any) -> Any:
        for weights in params:
            x = layer(weights, x)
        return x

    layer = jitbatch(lambda weights, x: jnp.tanh(x @ weights))
    weights = [jnp.ones((number, number + 1)) for number in range(1, 17)]
    alone = load_of(graphs_of(jitbatch(layers), weights, [np.ones(1, np.float32)]))
    assert alone.kinds == alone.nodes == 16
    assert per_sample_seconds(alone, ON_CPU) < fused_seconds(alone, ON_CPU) < dispatch_seconds(alone, ON_CPU)
    for of_one_type in (load(20), load(*range(10, 74))):
        assert fused_seconds(of_one_type, ON_CPU) < per_sample_seconds(of_one_type, ON_CPU)
    equal = load(*[20] * 64)
    assert whole_seconds(equal, ON_CPU) < per_sample_seconds(equal, ON_CPU)


def test_programs_of_structures_cost_by_their_nodes() -> None:
    short, long = load(3), load(30)
    assert structures_price(long, ON_CPU) > structures_price(short, ON_CPU)
    assert structures_price(load(3, 30), ON_CPU) == pytest.approx(
        structures_price(short, ON_CPU) + structures_price(long, ON_CPU)
    )


def test_known_costs_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_costs() == ON_CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert known_costs() == ON_ACCELERATOR


def test_the_steps_of_a_batch_take_its_time() -> None:
    graphs = graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(4, 4, 6))
    work = work_of(graphs[0].tables.kinds[int(graphs[0].kind[0])])
    whole = load_of(graphs)
    for in_one_program, seconds in ((True, fused_seconds), (False, dispatch_seconds)):
        steps = sum(step_seconds(work, rows, in_one_program, ON_CPU) for rows in (3, 3, 3, 1, 1))
        planning = ON_CPU.plan + whole.nodes * ON_CPU.node
        program = ON_CPU.call + ON_CPU.phase if in_one_program else 0.0
        assert seconds(whole, ON_CPU) == pytest.approx(planning + program + steps)


def test_a_cell_is_compiled_in_each_width() -> None:
    (graph,) = graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(2))
    work = work_of(graph.tables.kinds[int(graph.kind[0])])
    assert cell_price(work, 3, True, ON_CPU) == pytest.approx(3 * work.equations * ON_CPU.equation)
    assert cell_price(work, 3, False, ON_CPU) > cell_price(work, 3, True, ON_CPU)


EMBEDDING = jnp.ones((50, WIDTH))


@pytest.mark.parametrize(
    ("look_up", "rows_read"),
    [
        (lambda embedding, token: embedding[token], 1),
        (lambda embedding, token: jnp.take(embedding, jnp.stack([token, token + 1]), axis=0).sum(0), 2),
        (lambda embedding, token: jax.lax.dynamic_slice_in_dim(embedding, token, 3).sum(0), 3),
        (lambda embedding, token: jax.nn.relu(embedding)[token], 0),
        (lambda embedding, token: embedding[token] + embedding.sum(0), 0),
        (lambda embedding, token: jax.lax.dynamic_slice_in_dim(embedding, token, 30).sum(0) + embedding[token], 31),
        (lambda embedding, token: embedding[jnp.full(60, token)].sum(0), 0),
    ],
    ids=["index", "take", "slice", "relu", "also as a whole", "twice", "more than all"],
)
def test_a_look_up_reads_the_elements_that_it_returns(look_up: Any, rows_read: int) -> None:
    """Otherwise, models with embeddings would never run sample by sample."""
    (graph,) = graphs_of(jitbatch(lambda e, x: jitbatch(look_up)(e, x)), EMBEDDING, [np.int32(3)])
    work = [work_of(graph.tables.kinds[kind_id]) for kind_id in graph.kind.tolist()]
    row = 4 * WIDTH
    assert sum(each.row_bytes for each in work) == 4 + row + rows_read * row
    assert sum(each.bound_bytes for each in work) == (0 if rows_read else EMBEDDING.nbytes)
