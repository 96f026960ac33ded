"""Reports: what they count, and the advice they give."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import JitbatchError, Report, Static, jitbatch

PARAMS = {"w": jnp.ones((4, 4)), "v": jnp.ones((4, 4))}
X = np.arange(4, dtype=np.float32)


def line(fun: Any, text: str) -> str:
    """The file and line of a text in a function."""
    lines, first = inspect.getsourcelines(getattr(fun, "__wrapped__", fun))
    return f"{__file__}:{first + next(at for at, one in enumerate(lines) if text in one)}"


# --- Figures


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


def test_a_cell_is_named_by_the_users_function_and_line(report: Report) -> None:
    cells = {cell.name: cell for cell in report.cells}
    assert {"leaf", "compose"} <= set(cells)
    for name in ("leaf", "compose"):
        fun = getattr(zoo, name).__wrapped__
        assert cells[name].where == f"{zoo.__file__}:{fun.__code__.co_firstlineno}"


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


def test_the_table_fits_a_terminal(report: Report) -> None:
    text = str(report)
    assert max(map(len, text.splitlines())) <= 120
    for word in (
        "compose",
        "leaf",
        "steps",
        "no schedule needs fewer than",
        "memory",
        "structures",
        "estimated",
        "fused",
    ):
        assert word in text
    table = text.splitlines()[3:]
    assert table[0].startswith("cell")
    assert len({len(row) for row in table[2 : 2 + len(report.cells)]}) == 1


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

        @jitbatch(executor="loop")
        def score(self, x: Any) -> Any:
            return jnp.sum(self.w * x)

    jax.tree_util.register_pytree_node(Model, lambda m: ((), None), lambda *_: Model())
    report = Model().score.explain([X, X, X[:1]])
    assert [cell.calls for cell in report.cells] == [2, 1]
    assert "executor='loop'" in report.reason
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


# --- Advice


@jitbatch
def pooled(w: Any, xs: Any) -> Any:
    rows = jnp.take(xs, jnp.arange(2), axis=0)  # the take
    return w["w"] @ rows.sum(0)


@jitbatch
def projected(w: Any, x: Any) -> Any:
    return jnp.tanh(w["w"] @ x)  # the product


@jitbatch
def softmaxed(w: Any, xs: Any) -> Any:
    stacked = jnp.stack([w["w"] @ x for x in xs])
    return (jax.nn.softmax(stacked, axis=0) * stacked).sum(axis=0)  # the softmax


@jitbatch
def concatenated(w: Any, xs: Any) -> Any:
    return jnp.stack([w["w"] @ x for x in xs]).reshape(-1)[:4]  # the stack


def scaled(factor: Any) -> Any:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return jnp.sin(w["w"] @ x) * factor  # the factor

    return cell


@jitbatch
def branching(w: Any, mode: Static[str], x: Any) -> Any:
    x = w["w"] @ x
    return jnp.sin(x) if mode.value == "sin" else jnp.cos(x)  # the branch


@jitbatch
def looping(w: Any, count: Static[int], x: Any) -> Any:
    for _ in range(count.value):
        x = w["w"] @ x
    return x


@jitbatch
def layer(weight: Any, x: Any) -> Any:
    return jnp.tanh(weight @ x)


@jitbatch
def picked(w: Any, which: Static[int], x: Any) -> Any:
    return (w["w"] @ x)[which.value]  # the index


@jitbatch
def reduced(w: Any, axis: Static[int], x: Any) -> Any:
    return jnp.max(w["w"] * x, axis=axis.value)  # the reduction


@jitbatch
def dropped(w: Any, key: Any, x: Any) -> Any:
    return w["w"] @ jnp.where(jax.random.bernoulli(key, shape=(4,)), x, 0)


def multiplied(factor: Any) -> Any:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return jnp.multiply(jnp.sin(w["w"] @ x), factor)  # the factor

    return cell


FACTORS = {factor: multiplied(factor) for factor in (0.5, 0.75)}
ARRAYS = {n: scaled(np.arange(n, n + 4, dtype=np.float32)) for n in (1, 2)}

ADVICE: dict[str, tuple[Callable[[], Report], Any, str, list[str]]] = {
    "shapes": (
        lambda: pooled.explain(PARAMS, [np.ones((17, 4)), np.ones((9, 4))]),
        pooled,
        "# the take",
        ["`take` has shapes [17, 4] and [9, 4]", "Index rows one by one", "pad"],
    ),
    "a softmax of a stack": (
        lambda: softmaxed.explain(PARAMS, [[X], [X] * 3, [X] * 7]),
        softmaxed,
        "# the softmax",
        ["a softmax of a stack has 1, 3 and 7 values", "`jitbatch.segment`"],
    ),
    "a stack": (
        lambda: concatenated.explain(PARAMS, [[X], [X] * 3]),
        concatenated,
        "# the stack",
        ["a stack has 1 and 3 values", "`jitbatch.segment`"],
    ),
    "dtypes": (
        lambda: jitbatch(lambda w, x: projected(w, x)).explain(PARAMS, [X, X.astype(np.int32)]),
        projected,
        "# the product",
        ["several dtypes", "float32 and int32", "jnp.asarray"],
    ),
    "a number closed over": (
        lambda: jitbatch(lambda w, s: FACTORS[s[0].value](w, s[1])).explain(
            PARAMS, [(Static(0.5), X), (Static(0.75), X)]
        ),
        FACTORS[0.5],
        "# the factor",
        ["a Python number in `mul", "is 0.5 and 0.75", "use an operator, or pass it as an argument"],
    ),
    "an array closed over": (
        lambda: jitbatch(lambda w, s: ARRAYS[s[0].value](w, s[1])).explain(PARAMS, [(Static(1), X), (Static(2), X)]),
        ARRAYS[1],
        "# the factor",
        ["constant array", "differs from call to call", "pass it as an argument"],
    ),
    "control flow": (
        lambda: jitbatch(lambda w, s: branching(w, *s)).explain(PARAMS, [(Static("sin"), X), (Static("cos"), X)]),
        branching,
        "# the branch",
        ["runs `sin` and `cos`", "control flow", "Static"],
    ),
    "a loop": (
        lambda: jitbatch(lambda w, s: looping(w, *s)).explain(PARAMS, [(Static(1), X), (Static(3), X)]),
        looping,
        "@jitbatch",
        ["runs 1 and 3 operations", "decorate what the loop repeats"],
    ),
    "parameters": (
        lambda: jitbatch(lambda w, x: layer(w["w"], layer(w["v"], x))).explain(PARAMS, [X, 2 * X]),
        layer,
        "@jitbatch",
        ["different parameters, w['v'] and w['w']", "stack the weights"],
    ),
    "an index": (
        lambda: jitbatch(lambda w, s: picked(w, *s)).explain(PARAMS, [(Static(1), X), (Static(3), X)]),
        picked,
        "# the index",
        ["an index into a computed array is 1 and 3", "argument"],
    ),
    "an option": (
        lambda: jitbatch(lambda w, s: reduced(w, *s)).explain(PARAMS, [(Static(0), X), (Static(1), X)]),
        reduced,
        "# the reduction",
        ["Options of an operation"],
    ),
    "a Python number here, an array there": (
        lambda: jitbatch(lambda w, x: projected_scalar(w, x)).explain(PARAMS, [1.0, np.float32(2)]),
        None,
        "",
        ["a Python number and an array", "jnp.asarray"],
    ),
    "keys": (
        lambda: jitbatch(lambda w, s: dropped(w, *s)).explain(
            PARAMS, [(key, X) for key in jax.random.split(jax.random.key(0), 8)]
        ),
        dropped,
        "@jitbatch",
        ["random key of its own in each of 8 calls", "dedupe"],
    ),
    "a chain": (
        lambda: jitbatch(chain).explain(PARAMS, [np.ones((n, 4)) for n in (30, 2, 1, 1)]),
        projected,
        "@jitbatch",
        ["wait for each other in a chain of 30", "larger minibatch"],
    ),
}


@jitbatch
def projected_scalar(w: Any, x: Any) -> Any:
    return x * w["w"][0]


def chain(w: Any, xs: Any) -> Any:
    h = xs[0]
    for x in xs:
        h = projected(w, h + x)
    return h


@pytest.mark.parametrize("name", ADVICE)
def test_advice_tells_the_reason_and_the_line(name: str) -> None:
    explain, fun, text, words = ADVICE[name]
    report = explain()
    found = [advice for advice in report.advice if all(word in advice.text for word in words)]
    assert found, "\n".join(map(str, report.advice))
    if fun is not None:
        assert found[0].where == line(fun, text)
        assert str(found[0]) in " ".join(str(report).replace("\n  ", " ").split())


def test_what_is_batched_well_needs_no_advice() -> None:
    workload = zoo.named("binary_tree")
    assert [advice for advice in workload.batched.explain(*workload.draw(64)).advice if advice.where] == []


def test_the_parts_of_a_call_on_a_list_are_not_taken_for_variants_of_it() -> None:
    @jitbatch
    def node(params: Any, x: Any, children: list[Any]) -> Any:
        gates = sum(jnp.tanh(x + child @ params["v"]) * child for child in children)
        return jnp.tanh(x @ params["w"] + sum(children) @ params["w"] + gates)

    def encode(params: Any, tree: Any) -> Any:
        x, children = tree
        return node(params, x, [encode(params, child) for child in children]) if children else x * 2

    def tree(*children: int) -> Any:
        return X, [(X, [(X, [])] * child) for child in children]

    report = jitbatch(encode).explain(PARAMS, [tree(1, 2), tree(3, 2, 2), tree(2), tree(2, 3, 4, 5)])
    assert len([cell for cell in report.cells if cell.name.startswith("node")]) > 1  # it is opened
    assert not [advice for advice in report.advice if "types instead of one" in str(advice)]


def test_many_shapes_are_one_advice() -> None:
    report = pooled.explain(PARAMS, [np.ones((n, 4)) for n in range(3, 12)])
    (advice,) = [advice for advice in report.advice if "shapes" in advice.text]
    assert "9 types instead of one" in advice.text
    assert "(9 in all)" in advice.text


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
