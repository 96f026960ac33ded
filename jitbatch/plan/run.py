"""Execution of a plan by its executor."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jitbatch.execute.registry import EXECUTORS
from jitbatch.plan.compiles import note_run
from jitbatch.plan.eager import run_eagerly
from jitbatch.plan.plan import Plan
from jitbatch.util import meshes


def execute(plan: Plan, shared_leaves: Sequence[Any], is_eager: bool = False) -> Any:
    """Returns the outputs of a planned batch.

    Args:
        plan: the plan.
        shared_leaves: the leaves of the shared arguments.
        is_eager: whether the plan was made for a single run (`Planner.plan_for_once`).
    """
    static = plan.static
    executor = EXECUTORS[static.executor]
    if is_eager and executor.has_room:
        return run_eagerly(plan, lambda plan: execute(plan, shared_leaves))
    note_run(plan)
    outputs = meshes.run(executor.run, plan, list(shared_leaves))
    if static.out != "list":
        return outputs
    # A compiled program would sort the keys of dicts, so the results are unflattened here.
    return [tree.unflatten(leaves) for tree, leaves in zip(static.out_trees, outputs, strict=True)]


def results_of(plan: Plan, outputs: Any) -> list[Any]:
    """Converts the return value of `execute` to a list with the result of each sample."""
    if plan.static.out == "list":
        return outputs
    if plan.ragged is not None:
        return replace(plan.ragged, rows=outputs.rows).to_list()
    leaves, treedef = jax.tree.flatten(outputs)
    return [treedef.unflatten([leaf[sample] for leaf in leaves]) for sample in range(plan.summary.samples)]
