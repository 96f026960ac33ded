"""The same models on the same samples in other frameworks: samples a second.

    python bench/run.py --only peers [--data DIR] [--full | --quick] [--peers NAME ...] [--workloads NAME ...]

Each peer is a process of its own, with a virtual environment of its own where it needs one, made on the first run. All
have the same weights and samples; before anything is timed, the losses of the first minibatch before and after a step
of gradient descent are compared. A round is some minibatches, one after the other, with all that a user pays for
each: building graphs, analysis, tables. Only compilation is not counted, nor what a data loader would keep of a sample
(see each peer). The peers take turns, one round each; slow ones have fewer turns. Those that run sample by sample are
given few samples: a sample takes as long whatever the minibatch.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import results_of
from results import Failed, Job, Results, Row, Skipped
from timing import summarise
from workloads import WORKLOADS, as_json, make_workload, weights

from peers.process import PEERS, Pool
from peers.worker import THREADS

TOLERANCE = 1e-4
REFERENCE = "jitbatch"
PATIENCE, FEWEST = 10.0, 3
"""A peer whose turns took so many seconds has no more of them, if it had the fewest."""
PAUSE = 0.05
"""Seconds after which threads of the peer before, waiting for more work, have fallen asleep."""


class Grid(NamedTuple):
    """What is run: for each workload the sizes of states; minibatches and how many of each size are a round."""

    workloads: dict[str, tuple[int, ...]]
    batches: dict[int, int]
    rounds: int
    peers: tuple[str, ...]


def grid_of(options: argparse.Namespace) -> Grid:
    peers = tuple(PEERS)
    if options.quick:
        grid = Grid(dict.fromkeys(WORKLOADS, (8,)), {4: 2}, 2, peers)
    elif options.full:
        hidden = {"SICK": (150,), "SST": (128, 256), "tagger": (128,), "ListOps": (128,), "molecules": (64,)}
        grid = Grid(hidden, {256: 2, 64: 4, 16: 8, 1: 16}, 7, peers)
    else:
        few = tuple(name for name in PEERS if "per sample" not in name and name != "DGL")
        grid = Grid({"SICK": (150,), "SST": (128,)}, {64: 4}, 5, few)
    chosen = {name: grid.workloads.get(name, (128,)) for name in options.workloads or grid.workloads}
    batches = {size: grid.batches.get(size, max(256 // size, 1)) for size in options.batch or grid.batches}
    peers = tuple(options.peers or grid.peers)
    return grid._replace(workloads=chosen, batches=batches, peers=peers, rounds=options.rounds or grid.rounds)


def rank_of(key: dict[str, Any]) -> int:
    """What the goals are about comes first."""
    if key["batch"] < 64 or key["hidden"] > 150:
        return 5 if key["hidden"] <= 150 else 6
    return 0 if key["workload"] in ("SICK", "SST") else 2


def jobs_of(options: argparse.Namespace, results: Results, grid: Grid, pool: Pool, folder: Path) -> list[Job]:
    number = max(size * count for size, count in grid.batches.items())
    jobs = []
    for workload, sizes in grid.workloads.items():
        for hidden in sizes:
            for size, count in grid.batches.items():
                for mode in ("inference", "training"):  # in this order, so that peers need not start anew
                    key = {"workload": workload, "hidden": hidden, "batch": size, "mode": mode}
                    task = {
                        "workload": workload,
                        "hidden": hidden,
                        "training": mode == "training",
                        "batch": size,
                        "minibatches": count,
                        "distinct": size * count,
                        "number": number,
                        "data": None if options.data is None else str(options.data.resolve()),
                    }
                    measure = partial(contest, task, grid, pool, folder)
                    jobs.append(Job(results, key, measure, rank_of(key)))
    return jobs


def contest(task: dict[str, Any], grid: Grid, pool: Pool, folder: Path) -> Row:
    """Seconds a sample of each peer, or why it was not run."""
    task = task | exchange(task, folder)
    tasks = {name: limited(task, name) for name in grid.peers}
    few = {checked(one) for one in tasks.values()} - {task["batch"]}
    expected = {number: losses_of_few(task, number, pool) for number in few}
    reference = pool.ask(REFERENCE, task=task)
    expected[task["batch"]] = reference["losses"]
    others = [name for name in tasks if name != REFERENCE]
    with ThreadPoolExecutor(THREADS) as threads:
        replies = dict(zip(others, threads.map(lambda name: start(pool, name, tasks[name]), others), strict=True))
    replies |= {name: reference for name in tasks if name == REFERENCE}
    measured: dict[str, Any] = {}
    for name in tasks:
        reply = replies[name]
        try:
            if isinstance(reply, Exception):
                raise reply
            check(name, reply["losses"], expected[checked(tasks[name])])
            shared = {part: tasks[name][part] for part in ("batch", "minibatches", "distinct")}
            measured[name] = shared | {"threads": PEERS[name].threads, "versions": reply["versions"]}
        except Skipped as reason:
            measured[name] = {"skipped": str(reason)}
        except Failed as reason:
            measured[name] = {"failed": str(reason)}
    times = turns(pool, [name for name, one in measured.items() if "threads" in one], grid.rounds)
    for name, seconds in times.items():
        samples = tasks[name]["batch"] * tasks[name]["minibatches"]
        measured[name] |= summarise([one / samples for one in seconds])._asdict()
    return {"peers": measured}


def limited(task: dict[str, Any], name: str) -> dict[str, Any]:
    """A task as a peer gets it, with fewer samples if it is slow."""
    peer = PEERS[name]
    size = min(task["batch"], peer.most or task["batch"])
    count = min(task["minibatches"], max((peer.most or peer.distinct or size * task["minibatches"]) // size, 1))
    return task | {"batch": size, "minibatches": count, "distinct": min(size * count, peer.distinct or size * count)}


def checked(task: dict[str, Any]) -> int:
    """How many different samples are in the first minibatch."""
    return min(task["batch"], task["distinct"])


def losses_of_few(task: dict[str, Any], number: int, pool: Pool) -> list[float]:
    """Of the reference on the first samples alone, before and after an update."""
    few = task | {"training": True, "batch": number, "minibatches": 1, "distinct": number}
    return pool.once(REFERENCE, few)["losses"]


def start(pool: Pool, name: str, task: dict[str, Any]) -> dict[str, Any] | Exception:
    if task["workload"] not in PEERS[name].workloads:
        return Skipped("it has no such model")
    begin = time.perf_counter()
    try:
        reply = pool.ask(name, task=task)
    except (Skipped, Failed) as reason:
        return reason
    print(f"    {name} is ready after {time.perf_counter() - begin:.0f} s", flush=True)
    return reply


def turns(pool: Pool, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """The seconds of each peer's rounds. The order is another one in every round: it matters who came before."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in random.Random(number).sample(names, len(names)):
            if len(times[name]) < FEWEST or sum(times[name]) < PATIENCE:
                time.sleep(PAUSE)
                times[name].append(pool.ask(name, round=True)["seconds"])
    return times


def check(name: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    """Losses are equal, and in training also by how much one update made them smaller: so gradients are, too."""
    expected = expected[: len(losses)]
    same = np.allclose(losses, expected, rtol=TOLERANCE, atol=0)
    falls = np.allclose(np.diff(losses), np.diff(expected), rtol=0.05, atol=1e-5 * abs(expected[0]))
    if not (same and falls):
        raise Failed(f"{name} has the losses {losses} of the first minibatch, but {REFERENCE} {expected}")


def exchange(task: dict[str, Any], folder: Path) -> dict[str, str]:
    """Weights and samples as files that every framework can read."""
    name = f"{task['workload']}-{task['hidden']}"
    arrays, samples = folder / f"{name}.npz", folder / f"{name}.json"
    if not samples.exists():
        data = None if task["data"] is None else Path(task["data"])
        workload = make_workload(task["workload"], data, task["number"], task["hidden"])
        np.savez(arrays, **weights(workload.params))  # type: ignore[arg-type]
        samples.write_text(json.dumps([as_json(sample) for sample in workload.samples]), encoding="utf-8")
    return {"weights": str(arrays), "samples": str(samples)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processor-time", action="store_true", help="seconds are of processors, not of a clock: for shared machines"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="NAME", help=", ".join(PEERS))


def jobs(options: argparse.Namespace, stack: ExitStack) -> list[Job]:
    grid = grid_of(options)
    settings: dict[str, Any] = {"rounds": grid.rounds, "peers": grid.peers}
    if options.processor_time:
        os.environ["PROCESSOR_TIME"] = "1"  # read by every peer's process
        settings["seconds of"] = "processors"
    results = results_of(options, "peers", settings)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return jobs_of(options, results, grid, stack.enter_context(Pool()), Path(folder))
