"""Plans: types, widths and rows as planned, a verifier that notices what does not fit, and a plan as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import Plan, jitbatch
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.verify import verify_steps
from jitbatch.util.errors import PlanError, VerifyError
from jitbatch.util.packed import pack
from jitbatch.util.rounding import round_up

W = np.float32([1.0, 2.0])


@jitbatch
def join(w: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(w * x - y)


@jitbatch(executor="dispatch")
def encode(w: Any, tree: Any) -> Any:
    return join(w, *(encode(w, child) for child in tree)) if isinstance(tree, tuple) else tree


def vectors(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32))


def trees(seed: int = 0) -> list[Any]:
    a, b, c, d, e, f, g = vectors(7, seed)
    return [((a, b), c), (d, (e, (f, g))), (a, c)]


# --- Sizes


def test_sizes_are_rounded_up_to_a_small_grid() -> None:
    sizes = [round_up(count) for count in range(1, 2000)]
    assert sizes[:17] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24]
    assert all(count <= size for count, size in enumerate(sizes, 1))
    assert all(3 * (size - count) <= size for count, size in enumerate(sizes, 1))
    assert all(round_up(size) == size for size in sizes)
    assert len(set(sizes)) == 22
    assert round_up(0) == 1


# --- What is planned


def test_a_summary_counts() -> None:
    plan = encode.plan(W, trees())
    summary = plan.summary
    assert (summary.samples, summary.nodes, summary.distinct) == (3, 6, 6)
    assert (summary.levels, summary.types, summary.steps) == (3, 1, 3)
    assert (summary.rows, summary.padded_rows) == (6, 6)
    assert [step.width for step in plan.static.program.step_shapes] == [3, 2, 1]
    assert repr(plan) == (
        "Plan(3 samples: 6 nodes, 6 distinct, 3 levels, 1 types -> 3 steps (at least 3), width 2.0, 0% padding, "
        "dispatch)"
    )
    assert str(plan).splitlines()[1].startswith("  step 0: ")
    assert "x3 -> rows" in str(plan).splitlines()[1]


def test_equal_calls_are_planned_once() -> None:
    twice = [*trees(), *trees()]
    assert encode.plan(W, twice).summary.distinct == 6
    apart = jitbatch(encode.__wrapped__, dedupe=False, executor="dispatch")
    assert apart.plan(W, twice).summary.distinct == 12
    np.testing.assert_allclose(encode.batch(W, twice), apart.batch(W, twice), rtol=1e-6)


def test_shared_and_other_operands_are_one_type() -> None:
    def fun(w: Any, xs: Any) -> Any:
        h = w  # the initial state is a shared value, the others are not
        for x in xs:
            h = join(w, h, x)
        return h

    batched = jitbatch(fun)
    samples = [np.stack(vectors(3, seed)) for seed in range(2)]
    plan = batched.plan(W, samples)
    assert (plan.summary.types, plan.summary.steps) == (1, 3)
    np.testing.assert_allclose(batched.batch(W, samples), [fun(W, jnp.asarray(xs)) for xs in samples], rtol=1e-5)


def test_plans_of_equal_structures_have_equal_static_parts() -> None:
    one, other = encode.plan(W, trees(0)), encode.plan(W, trees(1))
    assert one.static == other.static
    assert hash(one.static) == hash(other.static)
    assert one.static != encode.plan(W, trees()[:2]).static
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_a_permutation_of_samples_has_the_same_steps() -> None:
    forwards, backwards = encode.plan(W, trees()), encode.plan(W, trees()[::-1])
    assert forwards.static.program.step_shapes == backwards.static.program.step_shapes


# --- A plan is a value


def test_a_plan_runs_as_often_as_wanted_with_any_parameters() -> None:
    plan = encode.plan(jax.ShapeDtypeStruct((2,), jnp.float32), trees())
    for w in (W, 3 * W):
        np.testing.assert_array_equal(encode.batch(w, plan), encode.batch(w, trees()))


def test_a_plan_is_a_pytree_of_arrays() -> None:
    plan = encode.plan(W, trees())
    leaves, treedef = jax.tree.flatten(plan)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
    again = treedef.unflatten(leaves)
    assert isinstance(again, Plan)
    np.testing.assert_array_equal(encode.batch(W, again), encode.batch(W, plan))


def test_a_plan_is_an_argument_of_jit() -> None:
    traces = []

    @jax.jit
    def run(w: Any, plan: Plan) -> Any:
        traces.append(None)
        return encode.batch(w, plan)

    for seed in (0, 1):
        np.testing.assert_allclose(run(W, encode.plan(W, trees(seed))), encode.batch(W, trees(seed)), rtol=1e-6)
    assert len(traces) == 1


def test_samples_of_outer_transformations_are_not_planned() -> None:
    with pytest.raises(PlanError, match="a plan's inputs are constants"):
        jax.grad(lambda x: encode.plan(W, [(x, x)]) and 0.0)(W)


def test_equal_static_parts_are_one_object() -> None:
    """Comparing them is comparing identities: jit's dispatch looks at no more."""
    fused = jitbatch(encode.__wrapped__)
    for batched in (encode, fused, jitbatch(encode.__wrapped__, executor="per_sample")):
        one, other = batched.plan(W, trees(0)), batched.plan(W, trees(1))
        assert one.static is other.static
        assert jax.tree.map(jnp.asarray, one).static is one.static
        assert one.static is not batched.plan(W, trees()[:2]).static
    large = fused.plan(W, [*trees(0), *trees(1)])
    assert fused.plan(W, trees(2), like=large).static is large.static
    assert fused.plan(W, trees(0)[::-1]).static is fused.plan(W, trees(0)).static


@pytest.mark.parametrize("executor", ["fused", "dispatch", "per_sample"])
def test_a_plan_goes_where_pytrees_go(executor: str) -> None:
    batched = jitbatch(encode.__wrapped__, executor=executor)
    plan = batched.plan(W, trees())
    want = np.asarray(batched.batch(W, plan))
    donated = jax.jit(lambda plan: jax.tree.map(lambda leaf: leaf, plan), donate_argnums=0)(jax.device_put(plan))
    for same in (jax.device_put(plan), jax.tree.map(jnp.asarray, plan), jax.tree.map(np.asarray, plan), donated):
        assert isinstance(same, Plan)
        assert same.static is plan.static
        assert repr(same) == repr(plan)
        np.testing.assert_array_equal(batched.batch(W, same), want)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # no output has the shape of a table
def test_a_step_that_donates_its_plan() -> None:
    fused = jitbatch(encode.__wrapped__)
    step = jax.jit(lambda w, plan: w - fused.batch(w, plan).mean(0), donate_argnums=(0, 1))
    plan = fused.plan(W, trees())
    want = step(jnp.asarray(W), plan)  # numpy arrays are copied to the device, and stay
    np.testing.assert_array_equal(step(jnp.asarray(W), jax.device_put(plan)), want)
    np.testing.assert_array_equal(step(jnp.asarray(W), plan), want)


# --- The verifier


@pytest.fixture(scope="module")
def plan() -> Plan:
    return encode.plan(W, trees())


def with_first(items: Any, new: Any) -> Any:
    return (new, *items[1:])


def with_static(plan: Plan, **changes: Any) -> dict[str, Any]:
    return {"static": replace(plan.static, **changes)}


def with_steps(plan: Plan, steps: Any) -> dict[str, Any]:
    return with_static(plan, program=replace(plan.static.program, step_shapes=steps))


def tables_of(plan: Plan) -> Any:
    return plan.tables.unpack()


def with_tables(plan: Plan, **changes: Any) -> dict[str, Any]:
    return {"tables": pack(plan.tables.unpack() | changes)}


BREAKS: dict[str, tuple[str, Callable[[Plan], dict[str, Any]]]] = {
    "inputs are short": (
        "inputs have the size they are padded to",
        lambda p: {"rows": with_first(p.rows, p.rows[0][:-1])},
    ),
    "inputs are missing": ("inputs have the size they are padded to", lambda p: {"rows": with_first(p.rows, None)}),
    "an operand is missing": (
        "step 0 reads an operand for each row of its kind",
        lambda p: with_tables(p, operands=with_first(tables_of(p)["operands"], tables_of(p)["operands"][0][:-1])),
    ),
    "a width is wrong": (
        "step 0 has no more nodes than rows",
        lambda p: with_steps(
            p, with_first(p.static.program.step_shapes, replace(p.static.program.step_shapes[0], width=2))
        ),
    ),
    "a row is read too early": (
        "operands of step 0 are written before",
        lambda p: with_tables(
            p,
            operands=with_first(
                tables_of(p)["operands"], tables_of(p)["operands"][0] * 0 + p.static.arenas[0].capacity - 1
            ),
        ),
    ),
    "steps are exchanged": (
        "operands of step 0 are written before",
        lambda p: (
            with_tables(
                p,
                operands=tables_of(p)["operands"][::-1],
                starts=tables_of(p)["starts"][::-1],
                counts=tables_of(p)["counts"][::-1],
            )
            | with_steps(p, p.static.program.step_shapes[::-1])
        ),
    ),
    "an arena is too small": (
        r"step \d writes inside its arenas",
        lambda p: with_static(p, arenas=(replace(p.static.arenas[0], capacity=p.static.arenas[0].inputs + 3),)),
    ),
    "a step writes outside": (
        "step 0 writes inside its arenas",
        lambda p: with_tables(p, starts=with_first(tables_of(p)["starts"], tables_of(p)["starts"][0] + 100)),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_plan_is_noticed(plan: Plan, name: str) -> None:
    law, breaks = BREAKS[name]
    verify_steps(plan)
    with pytest.raises(VerifyError, match=f"plan: {law}"):
        verify_steps(replace(plan, **breaks(plan)))


@pytest.mark.parametrize(
    "broken",
    [
        lambda p: with_tables(p, starts=with_first(tables_of(p)["starts"], tables_of(p)["starts"][0] * 0)),
        lambda p: {"out_rows": (p.out_rows[0] + 1000,)},
        lambda p: {"out_rows": (p.out_rows[0] * 0 - 1,)},
        lambda p: with_tables(p, operands=with_first(tables_of(p)["operands"], tables_of(p)["operands"][0] + 1000)),
        lambda p: with_tables(p, operands=with_first(tables_of(p)["operands"], tables_of(p)["operands"][0] * 0 - 1)),
    ],
    ids=["inputs are overwritten", "no such output", "negative output", "no such row", "negative row"],
)
def test_rows_out_of_range_are_noticed(plan: Plan, broken: Callable[[Plan], dict[str, Any]]) -> None:
    with pytest.raises(VerifyError, match="plan: "):
        verify_steps(replace(plan, **broken(plan)))


def test_padding_that_is_read_is_noticed() -> None:
    xs = vectors(10)
    pairs = [(xs[i], xs[i + 1]) for i in range(0, 10, 2)]
    plan = encode.plan(W, [(pair, xs[0]) for pair in pairs])
    first, second = plan.static.program.step_shapes
    assert first.width == second.width == 6  # five rows and one of padding
    padding = tables_of(plan)["starts"][0][0] + 5
    operands = tables_of(plan)["operands"][1].copy()
    operands[0, 0] = padding
    with pytest.raises(VerifyError, match="plan: "):
        verify_steps(replace(plan, **with_tables(plan, operands=(tables_of(plan)["operands"][0], operands))))


def test_arenas_hold_shared_rows_inputs_and_results() -> None:
    def fun(w: Any, x: Any) -> Any:
        return join(w, x, x), w

    (arena,) = jitbatch(fun, executor="dispatch").plan(W, vectors(5)).static.arenas
    assert isinstance(arena, ArenaShape)
    assert (len(arena.shared), arena.inputs) == (1, 6)
    assert arena.capacity == round_up(1 + 5 + 6)
