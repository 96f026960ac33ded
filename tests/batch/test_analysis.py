"""Types of a batch, merged calls, and the rows of what nodes read and make."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jitbatch import jitbatch
from jitbatch.batch.analysis import Analysis, analyse
from jitbatch.batch.types import Profile, types_of
from jitbatch.ir.tables import ROW

W = {"a": jnp.ones((2, 2)), "b": 2 * jnp.ones((2, 2)), "start": jnp.ones(2)}


@jitbatch
def step(matrix: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ matrix) + x


def graphs_of(fun: Any, samples: list[Any]) -> tuple[list[Any], list[list[Any]]]:
    """The graphs of samples that are tuples of float vectors, and their leaves."""
    batched = jitbatch(fun)
    batched.plan(W, samples)
    (context,) = batched._planner.contexts
    by_length = {len(graph.leaf_shapes): graph for graph in context.graphs}
    return [by_length[len(sample)] for sample in samples], [list(sample) for sample in samples]


def analysis_of(graphs: list[Any], leaves: list[list[Any]], dedupe: bool = True) -> Analysis:
    types = types_of(Profile().union(graphs), graphs, split=False)
    inputs = [graph.input_rows.taken(one) for graph, one in zip(graphs, leaves, strict=True)]
    return analyse(graphs, inputs, types, dedupe)


def vectors(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.full(2, value, np.float32) for value in values)


def chain(w: Any, xs: Any) -> Any:
    h = w["start"]
    for x in xs:
        h = step(w["a"], h, x)
    return h


def test_a_shared_value_in_the_place_of_a_row_is_a_row() -> None:
    graphs, leaves = graphs_of(chain, [vectors(1, 2, 3), vectors(4)])
    analysis = analysis_of(graphs, leaves)
    (kind,) = analysis.types.kinds
    assert sorted(bound == ROW for bound in kind.binding) == [False, True, True]
    (rows,) = [rows for rows in analysis.shared_rows if rows]
    assert len(rows) == 1


def test_a_batch_whose_calls_all_pass_the_shared_value_binds_it() -> None:
    graphs, leaves = graphs_of(chain, [vectors(4), vectors(5)])
    analysis = analysis_of(graphs, leaves)
    (kind,) = analysis.types.kinds
    assert sorted(bound == ROW for bound in kind.binding) == [False, False, True]
    assert not any(analysis.shared_rows)


def test_different_weights_are_different_types() -> None:
    graphs, leaves = graphs_of(lambda w, xs: step(w["b"], step(w["a"], xs[0], xs[1]), xs[1]), [vectors(1, 2)])
    analysis = analysis_of(graphs, leaves)
    assert len(analysis.types.kinds) == 2
    assert len({kind.cell for kind in analysis.types.kinds}) == 1


def test_equal_calls_have_one_leader() -> None:
    graphs, leaves = graphs_of(chain, [vectors(1, 2, 3), vectors(1, 2, 4)])
    analysis = analysis_of(graphs, leaves)
    assert analysis.leader.tolist() == [0, 1, 2, 0, 1, 5]
    assert analysis.nodes.tolist() == [0, 1, 2, 5]
    apart = analysis_of(graphs, leaves, dedupe=False)
    assert apart.leader.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(analysis.packed.rows) == 1
    (rows,) = analysis.packed.rows.values()
    assert len(rows) == 4


def test_outputs_of_equal_bodies_are_united() -> None:
    def pair(w: Any, xs: Any) -> Any:
        def both(x: Any) -> Any:
            c = x * w["start"]
            return jnp.tanh(c), c

        def recurse(i: int) -> Any:
            if i == 0:
                return xs[0], xs[0]
            h, c = recurse(i - 1)
            return both(h + c)

        return recurse(len(xs) - 1)[0]

    graphs, leaves = graphs_of(pair, [vectors(1, 2, 3, 4)])
    types = analysis_of(graphs, leaves).types
    assert len(types.recipes) > len(types.kinds)
    assert all(len(set(recipe.outputs)) == len(recipe.outputs) for recipe in types.recipes.values())


def test_operands_are_found_where_values_are_placed() -> None:
    graphs, leaves = graphs_of(chain, [vectors(1, 2)])
    analysis = analysis_of(graphs, leaves)
    value_row = analysis.value_row.copy()
    analysis.place(value_row, analysis.nodes, [10])
    analysis.place_merged(value_row)
    (kind,) = analysis.types.kinds
    rows = analysis.operand_rows(analysis.nodes, value_row, kind.rows)
    assert 10 in rows[:, 1].tolist()
    assert 10 not in rows[:, 0].tolist()
