"""Batches that the core in Python plans equal the plain loop, too, and the cores' plans of real trees are equal."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from core.cores import CORES, assert_equal_plans, planning_by
from zoo import WORKLOADS, assert_same, gradients, named

from jitbatch import jitbatch


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS[1::14]])
def test_batches_of_the_core_in_python_equal_the_plain_loop(name: str) -> None:
    workload = named(name)
    params, samples = workload.draw()
    with planning_by("python"):
        batched = jitbatch(workload.fun, executor="fused")
        plan = batched.plan(params, samples)
        plan = batched.plan(params, samples, like=plan)  # fills a known program
        values, grads = gradients(lambda params, _: batched.batch(params, plan), params, samples, transform=jax.jit)
    wanted, wanted_grads = gradients(workload.loop, params, samples, transform=jax.jit)
    assert_same(values, wanted)
    assert_same(grads, wanted_grads, rtol=1e-4, atol=1e-5)


def sentence(rng: np.random.Generator, leaves: int) -> Any:
    """A binary tree of words, as long and as deep as sentences of treebanks are."""
    if leaves == 1:
        return int(rng.integers(50))
    left = int(rng.integers(1, leaves))
    return sentence(rng, left), sentence(rng, leaves - left)


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="there is no compiled core")
@pytest.mark.parametrize("dedupe", [True, False])
def test_both_cores_plan_treebanks_alike(dedupe: bool) -> None:
    @jitbatch
    def leaf(params: Any, token: Any) -> Any:
        return params["embed"][token]

    @jitbatch
    def compose(params: Any, left: Any, right: Any) -> Any:
        return jax.numpy.tanh(left @ params["left"] + right @ params["right"])

    def encode(params: Any, tree: Any) -> Any:
        return (
            compose(params, *(encode(params, part) for part in tree)) if isinstance(tree, tuple) else leaf(params, tree)
        )

    rng = np.random.default_rng(0)
    params = {"embed": np.ones((50, 4), np.float32), "left": np.eye(4) / 2, "right": np.eye(4) / 3}
    trees = [sentence(rng, int(rng.integers(2, 53))) for _ in range(128)]
    plans: dict[str, list[Any]] = {}
    for core in CORES:
        with planning_by(core):
            batched = jitbatch(lambda params, tree: encode(params, tree).sum(), executor="fused", dedupe=dedupe)
            like, plans[core] = None, []
            for begin in (0, 32, 64, 96, 0):
                like = batched.plan(params, trees[begin : begin + 32], like=like)
                plans[core].append(like)
    for native, python in zip(*plans.values(), strict=True):
        assert_equal_plans(native, python)
