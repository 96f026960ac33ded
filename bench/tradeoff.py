"""Analysis time against what batching gains: granularity, policy, executor and minibatch size on four workloads.

    python bench/tradeoff.py [--data DIR] [--full | --quick] [--workloads NAME ...] [--batch N ...]

A way is a granularity, a policy and an executor; `auto` is what a user gets who chooses nothing. For each, all
minibatches of a row are planned with structures never seen (cold) and seen before (warm), and run. Ways that compile a
program for each structure are run on a few samples, and their times scaled to all. SICK is also run with cells whose
type depends on their number of children (by arity), and with `--full` its whole training set, by subgraphs.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import models
import numpy as np
from command import alone, results_of
from results import Job, Row
from timing import interleaved
from trees import levels_of, minibatches, total_nodes
from workloads import WORKLOADS, Workload, make_workload

from jitbatch import Plan, clear_caches, jitbatch
from jitbatch.data import Dependency, Pair


class Way(NamedTuple):
    """How a batch is analysed and run.

    Attributes:
        by_arity: SICK alone: each number of children is a type of its own.
    """

    granularity: str
    policy: str
    executor: str
    by_arity: bool = False

    @property
    def per_structure(self) -> bool:
        return self.granularity == "graph" or self.executor == "per_sample"

    def __str__(self) -> str:
        return ", ".join([*self[:3], *(["by arity"] if self.by_arity else [])])


AUTO = Way("auto", "auto", "auto")
SETTLING = 32
"""How often all minibatches are planned before `auto` is timed: it changes its mind when that has paid."""
POLICIES = ("depth", "agenda", "layers")
WAYS = (
    AUTO,
    *(Way("subgraph", policy, executor) for executor in ("fused", "dispatch") for policy in POLICIES),
    *(Way("op", policy, "dispatch") for policy in POLICIES),
    Way("graph", "depth", "dispatch"),
    Way("auto", "auto", "per_sample"),
)
FEW = 16
"""How many samples ways are run on that compile a program for each structure."""
BY_ARITY = tuple(Way("subgraph", policy, "dispatch", by_arity=True) for policy in POLICIES)


class Grid(NamedTuple):
    """What is run: sizes of states and of minibatches, how many minibatches of each size, of which ways."""

    workloads: dict[str, int]
    batches: dict[int, int]
    ways: tuple[Way, ...]
    rounds: int


def grid_of(options: argparse.Namespace) -> Grid:
    paper = {"SICK": 150, "SST": 128, "ListOps": 128, "tagger": 128, "molecules": 64}
    if options.quick:
        few = tuple(way for way in WAYS if way.policy != "agenda" and way.granularity != "op")
        grid = Grid(dict.fromkeys(WORKLOADS, 8), {4: 2}, few, 2)
    elif options.full:
        grid = Grid(paper, {256: 1, 64: 2, 16: 4, 1: 16}, WAYS, 5)
    else:
        without_ops = tuple(way for way in WAYS if way.granularity not in ("op", "graph"))
        grid = Grid({"SICK": 150, "SST": 128}, {64: 1}, without_ops, 5)
    chosen = {name: grid.workloads.get(name, paper[name]) for name in options.workloads or grid.workloads}
    batches = {size: grid.batches.get(size, 1) for size in options.batch or grid.batches}
    return grid._replace(workloads=chosen, batches=batches, rounds=options.rounds or grid.rounds)


def jobs(options: argparse.Namespace, _: ExitStack) -> list[Job]:
    grid = grid_of(options)
    results = results_of(options, "tradeoff", {"rounds": grid.rounds, "ways": grid.ways})
    found = []
    for name, hidden in grid.workloads.items():
        ways = grid.ways + (BY_ARITY if name == "SICK" else ())
        for size, count in grid.batches.items():
            key = {"workload": name, "hidden": hidden, "batch": size}
            run = partial(measure, name, options.data, size * count, hidden, size, ways, grid.rounds)
            found.append(Job(results, key, run, rank_of(key)))
        if options.full and name == "SICK" and options.data is not None and 256 in grid.batches:
            key = {"workload": name, "hidden": hidden, "batch": 256, "samples": "all"}
            by_subgraphs = tuple(way for way in ways if way.granularity == "subgraph" or way == AUTO)
            run = partial(measure, name, options.data, 10**6, hidden, 256, by_subgraphs, min(grid.rounds, 3))
            found.append(Job(results, key, run, rank_of(key)))
    return found


def rank_of(key: dict[str, Any]) -> int:
    """The paper's workload at its minibatch size comes first; of the others, a minibatch that is quick to run."""
    if key["workload"] == "SICK" and key["batch"] == 256:
        return 1 if "samples" not in key else 3
    return 3 if key["batch"] == 64 and key["workload"] != "SICK" else 6


def measure(name: str, data: Path | None, number: int, hidden: int, size: int, ways: Sequence[Way], rounds: int) -> Row:
    workload = make_workload(name, data, number, hidden)
    batches = list(minibatches(workload.samples, size))
    if rest := workload.samples[len(batches) * size :]:
        batches.append(rest)
    functions = {way: decorated(workload, way) for way in ways}
    values: dict[str, dict[str, Any]] = {}
    for way, function in functions.items():
        clear_caches()
        start = time.perf_counter()
        plans_of(function, workload.params, batches)
        values[str(way)] = {"cold": time.perf_counter() - start}
    contestants: dict[str, Callable[[], Any]] = {}
    expected: np.ndarray | None = None
    for way, function in functions.items():
        largest = None if way == AUTO else plans_of(function, workload.params, batches)[-1]
        warm = partial(plans_like, function, workload.params, batches, largest)
        for _ in range(SETTLING if way == AUTO else 1):
            warm()
        plans = warm()
        values[str(way)] |= counts(plans)
        if way.per_structure and len(workload.samples) > FEW:
            plans = [function.plan(workload.params, workload.samples[:FEW])]
            values[str(way)]["scaled"] = len(workload.samples) / FEW
        runs = {"warm": warm, "inference": partial(each, compiled(function, way, False), workload.params, plans)}
        if way.executor in ("fused", "auto"):
            runs["training"] = partial(each, compiled(function, way, True), workload.params, plans)
        losses = np.concatenate(runs["inference"]())
        expected = losses if expected is None else expected
        np.testing.assert_allclose(
            losses, expected[: len(losses)], rtol=1e-4, err_msg=f"{way} has other losses than {ways[0]}"
        )
        contestants |= {f"{way}/{what}": run for what, run in runs.items()}
    for name_of_run, timing in interleaved(contestants, rounds).items():
        way_name, what = name_of_run.split("/")
        factor = 1 if what == "warm" else values[way_name].get("scaled", 1)
        values[way_name][what] = timing.times(factor)._asdict()
    row: Row = {}
    if name in ("SICK", "SST"):
        levels, by_arity = np.sum([levels_of(batch) for batch in batches], axis=0).tolist()
        row["trees"] = {"nodes": total_nodes(workload.samples), "levels": levels, "levels by arity": by_arity}
    return row | {
        "source": workload.source,
        "samples": len(workload.samples),
        "minibatches": len(batches),
        "ways": values,
        "work": work(workload, plans_of(decorated(workload, AUTO), workload.params, batches)),
    }


def decorated(workload: Workload, way: Way) -> Any:
    function = pair_loss_by_arity if way.by_arity else workload.model.__wrapped__
    return jitbatch(function, granularity=way.granularity, policy=way.policy, executor=way.executor)


@jax.jit
def node_by_arity(params: models.Params, token: Any, children: list[models.State]) -> models.State:
    """A cell that is not opened around its sums, so that each number of children is another cell."""
    return models.node.__wrapped__(params, token, children)


def pair_loss_by_arity(params: models.Params, pair: Pair) -> jax.Array:
    def encode(tree: Dependency) -> models.State:
        return node_by_arity(params, tree.token, [encode(child) for child in tree.children])

    return models.divergence(params, encode(pair.left), encode(pair.right), pair.target)


def plans_of(function: Any, params: Any, batches: Sequence[Any]) -> list[Plan]:
    plan = None
    plans = []
    for batch in batches:
        plan = function.plan(params, batch, like=plan)
        plans.append(plan)
    return plans


def plans_like(function: Any, params: Any, batches: Sequence[Any], like: Plan | None) -> list[Plan]:
    """Plans of equal sizes, so that one program runs all of them; without `like`, what each batch would get alone."""
    return [function.plan(params, batch, like=like) for batch in batches]


def compiled(function: Any, way: Way, training: bool) -> Callable[[Any, Plan], Any]:
    def mean(params: Any, plan: Plan) -> jax.Array:
        return function.batch(params, plan).mean()

    run = jax.value_and_grad(mean) if training else function.batch
    return jax.jit(run) if way.executor in ("fused", "auto") else run


def each(function: Callable[[Any, Plan], Any], params: Any, plans: Sequence[Plan]) -> list[Any]:
    return [function(params, plan) for plan in plans]


def counts(plans: Sequence[Plan]) -> dict[str, Any]:
    """The sums over minibatches of what planning did; levels and types are of the largest."""
    summaries = [plan.summary for plan in plans]
    most = {name: max(getattr(one, name) for one in summaries) for name in ("levels", "types")}
    names = ("nodes", "distinct", "steps", "bound", "launches", "rows", "padded_rows")
    totals = {name: sum(getattr(one, name) for one in summaries) for name in names}
    return totals | most | {"width": totals["rows"] / max(totals["steps"], 1), "plan": repr(plans[0])}


def work(workload: Workload, plans: Sequence[Plan], lowered: int = 4) -> dict[str, float]:
    """What is to be done for all minibatches: floating point operations without dedupe, estimated from XLA's count for
    a few samples, and the bytes of the weights, without embeddings, and of all values."""
    few = workload.samples[:lowered]
    program = jax.jit(workload.model.__wrapped__)
    flops = [program.lower(workload.params, sample).cost_analysis()["flops"] for sample in few]  # type: ignore[index]
    named = jax.tree.leaves_with_path(workload.params)
    weights = sum(leaf.nbytes for path, leaf in named if "embed" not in jax.tree_util.keystr(path))
    leaves = [sum(map(np.size, jax.tree.leaves(sample))) for sample in workload.samples]
    parameters = sum(leaf.nbytes for _, leaf in named)
    values = sum(plan.memory.inference - parameters for plan in plans)
    return {"flops": sum(flops) / sum(leaves[:lowered]) * sum(leaves), "weights": weights, "values": values}


if __name__ == "__main__":
    alone(__doc__, jobs)
