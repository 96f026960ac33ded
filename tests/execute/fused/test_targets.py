"""Programs made for other platforms: on CPU they have the same values, and their form is what the platform needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, named, projected

from jitbatch import jitbatch
from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.fused.targets import CPU, TARGETS
from jitbatch.util.errors import ArgumentError

GRADIENTS = {"rtol": 1e-4, "atol": 1e-5}
ACCELERATORS = [name for name in TARGETS if name != "cpu"]


def step_of(batched: Any) -> Any:
    return jax.value_and_grad(lambda params, plan: projected(batched.batch(params, plan)))


def loops_of(jaxpr: Any) -> Iterator[Any]:
    """All `while` equations of a jaxpr."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            yield equation
        for param in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(param, "eqns"):  # of a jaxpr, closed or not
                yield from loops_of(param)


def names(jaxpr: Any) -> list[str]:
    return [equation.primitive.name for equation in jaxpr.eqns]


@pytest.mark.parametrize("platform", ACCELERATORS)
@pytest.mark.parametrize("name", ["binary_tree", "child_sum_edges", "dag"])
def test_a_program_for_an_accelerator_has_the_values_of_the_loop(name: str, platform: str) -> None:
    entry = named(name)
    params, samples = entry.draw(7)
    batched = jitbatch(entry.fun, platform=platform)
    plan = batched.plan(params, samples)
    assert all(phase.platform == platform for phase in plan.static.program.phases if isinstance(phase, LoopShape))

    run = jax.jit(lambda params, plan: gradients(lambda p, _: batched.batch(p, plan), params, []))
    assert_same(run(params, plan), gradients(entry.loop, params, samples), **GRADIENTS)


@pytest.mark.parametrize("platform", TARGETS)
def test_conditions_read_no_table_where_that_is_an_operation_on_the_device(platform: str) -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(7)
    batched = jitbatch(entry.fun, platform=platform)
    jaxpr = jax.make_jaxpr(step_of(batched))(params, batched.plan(params, samples))
    reads = [{"gather", "dynamic_slice"} & set(names(one.params["cond_jaxpr"].jaxpr)) for one in loops_of(jaxpr.jaxpr)]
    assert len(reads) >= 4
    assert any(reads) == (not TARGETS[platform].hoists_trips)


@pytest.mark.parametrize("platform", TARGETS)
def test_cotangent_rows_are_read_behind_a_barrier(platform: str) -> None:
    """Without it, XLA for GPUs fuses the gather into later writes to the same array, and copies the array first."""
    entry = named("binary_tree")
    params, samples = entry.draw(7)
    batched = jitbatch(entry.fun, platform=platform)
    jaxpr = jax.make_jaxpr(step_of(batched))(params, batched.plan(params, samples))
    seen = 0
    for one in loops_of(jaxpr.jaxpr):
        body = one.params["body_jaxpr"].jaxpr
        written = {id(e.invars[0]) for e in body.eqns if e.primitive.name == "dynamic_update_slice"}
        for place, equation in enumerate(body.eqns):
            is_own = equation.primitive.name == "gather" and id(equation.invars[0]) in written
            if not is_own or "optimization_barrier" not in names(body):
                continue
            behind = {id(var) for var in equation.outvars}
            for later in body.eqns[place + 1 :]:
                if behind & {id(var) for var in later.invars}:
                    assert later.primitive.name in ("slice", "optimization_barrier")
                    seen += later.primitive.name == "optimization_barrier"
                    behind |= {id(v) for v in later.outvars} if later.primitive.name == "slice" else set()
    assert seen >= 1


def test_operands_of_one_arena_are_gathered_together() -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(7)
    batched = jitbatch(entry.fun)
    jaxpr = jax.make_jaxpr(batched.batch)(params, batched.plan(params, samples))
    bodies = [names(one.params["body_jaxpr"].jaxpr) for one in loops_of(jaxpr.jaxpr)]
    innermost = [own for own in bodies if "while" not in own]
    assert innermost
    assert all(own.count("gather") == 1 for own in innermost)


def test_parameters_on_the_default_device_are_for_its_platform() -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(5)
    batched = jitbatch(entry.fun)
    first = batched.plan(params, samples)
    assert batched.plan(jax.device_put(params, jax.devices()[0]), samples).static is first.static


def test_widths_belong_to_the_platform() -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(7)
    for platform, target in TARGETS.items():
        (loop,) = [
            phase
            for phase in jitbatch(entry.fun, platform=platform).plan(params, samples).static.program.phases
            if isinstance(phase, LoopShape)
        ]
        assert set(loop.blocks[0].widths) <= set(target.widths)
        assert loop.margin >= 0
        assert (loop.target is CPU) == (platform == "cpu")


def test_a_platform_that_nobody_knows() -> None:
    with pytest.raises(ArgumentError, match=r"platform='abacus' is not one of 'auto', 'cpu', 'gpu', 'tpu'"):
        jitbatch(platform="abacus")


def test_second_derivatives_pass_the_barrier() -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(3)
    batched = jitbatch(entry.fun, platform="tpu")
    plan = batched.plan(params, samples)
    direction = jax.tree.map(jnp.ones_like, params)

    def hessian_product(loss: Any) -> Any:
        return jax.jvp(jax.grad(loss), (params,), (direction,))[1]

    got = jax.jit(lambda: hessian_product(lambda p: projected(batched.batch(p, plan))))()
    want = hessian_product(lambda p: projected(entry.loop(p, samples)))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(got))
    assert_same(got, want, rtol=1e-3, atol=1e-4)
