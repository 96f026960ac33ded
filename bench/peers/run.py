"""The same models on the same samples in other frameworks: samples a second.

    python bench/run.py --only peers [--data DIR] [--full | --quick] [--peers NAME ...] [--workloads NAME ...]

Each peer is a process of its own, with a virtual environment of its own where it needs one, made on the first run. All
have the same weights and samples; before anything is timed, the losses of the first minibatch before and after a step
of gradient descent are compared. A round is some minibatches, one after the other, with all that a user pays for
each: building graphs, analysis, tables. Only compilation is not counted, nor what a data loader would keep of a sample
(see each peer). The peers take turns, one round each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import parser_of, results_of
from results import Job, Row, Skipped, run
from timing import summarise
from workloads import WORKLOADS, as_json, make_workload, weights

from peers.worker import THREADS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".environments"
TOLERANCE = 1e-4
TORCH = "torch==2.13.0+cpu"
"""PyTorch for processors alone; where it is not to be had, the general package, which is much larger, is taken."""


class Peer(NamedTuple):
    """How a peer is started.

    Attributes:
        command: the script and its arguments.
        environment: the name of its virtual environment, or None for this one.
        most: how many samples it is given at most, if it is very slow or compiles for each.
        workloads: what it can run.
        threads: how many it uses.
    """

    command: tuple[str, ...]
    environment: str | None = None
    most: int | None = None
    workloads: tuple[str, ...] = WORKLOADS
    threads: int = THREADS


PEERS = {
    "jitbatch": Peer(("ours.py", "2")),
    "jitbatch, no prefetch": Peer(("ours.py", "0")),
    "DyNet agenda": Peer(("dynet_autobatch.py", "--dynet-autobatch", "1"), "dynet", threads=1),
    "DyNet depth": Peer(("dynet_autobatch.py", "--dynet-autobatch", "2"), "dynet", threads=1),
    "PyTorch by hand": Peer(("torch_levels.py",), "torch"),
    "pytorch-tree-lstm": Peer(("torch_tree_lstm.py",), "torch", workloads=("SICK",)),
    "PyTorch per sample": Peer(("torch_eager.py",), "torch", most=64),
    "DGL": Peer(("dgl_trees.py",), "dgl", workloads=("SICK", "SST")),
    "JAX by hand": Peer(("jax_levels.py",), workloads=("SICK", "SST")),
    "JAX padded vmap": Peer(("jax_padded.py",)),
    "JAX per sample, jitted": Peer(("jax_loop.py",), most=16),
    "JAX per sample": Peer(("jax_loop.py", "eager"), most=4),
}

PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "dynet": (("dyNET38", "numpy<2"),),
    "torch": ((TORCH, "numpy", "pytorch-tree-lstm"),),
    # DGL has no release for this PyTorch. The last that does not load a library for one certain release of it still
    # runs, with an older setuptools than PyTorch asks for.
    "dgl": ((TORCH, "numpy<2", "dgl==1.1.3"), ("setuptools<70", "packaging")),
}
"""For each environment what is installed, one call of pip after the other."""


def python_of(environment: str | None) -> Path:
    """The interpreter of an environment, which is made if it is missing."""
    if environment is None:
        return Path(sys.executable)
    folder = ENVIRONMENTS / environment
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"making the environment {environment}", flush=True)
        venv.create(folder, with_pip=True)
        for packages in PACKAGES[environment]:
            general = tuple("torch" if package == TORCH else package for package in packages)
            if (reason := install(python, packages)) and (general == packages or (reason := install(python, general))):
                raise Skipped(f"{' '.join(packages)} cannot be installed: {reason}")
        done.touch()
    return python


def install(python: Path, packages: Sequence[str]) -> str:
    """Install packages; if that fails, the reason is returned."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (reasons or ["pip failed"])[-1] if done.returncode else ""


class Failed(Exception):
    """A peer has an error, or computes something else; it is not timed."""


class Process:
    """A running peer."""

    def __init__(self, peer: Peer):
        python = python_of(peer.environment)
        path = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent.parent)))
        threads = {name: str(peer.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, HERE / peer.command[0], *peer.command[1:]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, "PYTHONPATH": path, **threads},
        )  # fmt: skip
        if hasattr(os, "sched_setaffinity"):
            # XLA takes as many threads as it may use cores.
            os.sched_setaffinity(self._process.pid, sorted(os.sched_getaffinity(0))[:THREADS])

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line.strip()]
            raise Skipped(f"its process ended: {(lines or ['it said nothing'])[-1]}")
        reply = json.loads(answer)
        if "unsupported" in reply:
            raise Skipped(reply["unsupported"])
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()


class Pool:
    """The running peers. Their processes serve one task after the other."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        """Start a peer if need be, and ask it; one that fails is ended."""
        try:
            if name not in self._running:
                self._running[name] = Process(PEERS[name])
            return self._running[name].ask(**request)
        except (Skipped, Failed):
            if name in self._running:
                self._running.pop(name).close()
            raise

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._running.values():
            process.close()


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
        hidden = {"SICK": (150,), "SST": (128, 256), "ListOps": (128,), "tagger": (128,)}
        grid = Grid(hidden, {1: 32, 16: 16, 64: 8, 256: 4}, 9, peers)
    else:
        few = tuple(name for name in PEERS if "per sample" not in name and name != "DGL")
        grid = Grid({"SICK": (150,), "SST": (128,)}, {64: 4}, 5, few)
    chosen = {name: grid.workloads.get(name, (128,)) for name in options.workloads or grid.workloads}
    batches = {size: grid.batches.get(size, max(256 // size, 1)) for size in options.batch or grid.batches}
    peers = tuple(options.peers or grid.peers)
    return grid._replace(workloads=chosen, batches=batches, peers=peers, rounds=options.rounds or grid.rounds)


def jobs_of(grid: Grid, data: Path | None, pool: Pool, folder: Path) -> list[Job]:
    number = max(size * count for size, count in grid.batches.items())
    jobs = []
    for workload, sizes in grid.workloads.items():
        for hidden in sizes:
            for size, count in grid.batches.items():
                for mode in ("training", "inference"):
                    key = {"workload": workload, "hidden": hidden, "batch": size, "mode": mode}
                    task = {
                        "workload": workload,
                        "hidden": hidden,
                        "training": mode == "training",
                        "batch": size,
                        "minibatches": count,
                        "number": number,
                        "data": None if data is None else str(data.resolve()),
                    }
                    jobs.append(Job(key, lambda task=task: contest(task, grid, pool, folder)))
    return jobs


def contest(task: dict[str, Any], grid: Grid, pool: Pool, folder: Path) -> Row:
    """Seconds a sample of each peer, or why it was not run."""
    task = task | exchange(task, folder)
    measured: dict[str, Any] = {}
    samples: dict[str, int] = {}
    expected: list[float] = []
    for name in grid.peers:
        peer = PEERS[name]
        count = task["minibatches"] if peer.most is None else min(task["minibatches"], peer.most // task["batch"])
        try:
            if task["workload"] not in peer.workloads:
                raise Skipped("it has no such model")
            if not count:
                raise Skipped(f"too slow to start for more than {peer.most} samples")
            reply = pool.ask(name, task=task | {"minibatches": count})
            expected = expected or reply["losses"]
            check(name, reply["losses"], expected)
            samples[name] = count * task["batch"]
            measured[name] = {"seconds to start": round(reply["seconds to start"], 2), "threads": peer.threads}
        except Skipped as reason:
            measured[name] = {"skipped": str(reason)}
        except Failed as reason:
            measured[name] = {"failed": str(reason)}
    times: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(grid.rounds):
        for name, seconds in times.items():
            seconds.append(pool.ask(name, round=True)["seconds"] / samples[name])
    for name, seconds in times.items():
        measured[name] |= summarise(seconds)._asdict() | {"samples": samples[name]}
    return {"peers": measured}


def check(name: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    """Losses are equal, and in training also by how much one update made them smaller: so gradients are, too."""
    same = np.allclose(losses, expected, rtol=TOLERANCE, atol=0)
    falls = np.allclose(np.diff(losses), np.diff(expected), rtol=0.05, atol=1e-5 * abs(expected[0]))
    if not (same and falls):
        raise Failed(f"{name} has the losses {losses} of the first minibatch, but the first peer {expected}")


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


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--batch", type=int, nargs="+", help="sizes of minibatches")
    options = parser.parse_args(arguments)
    grid = grid_of(options)
    results = results_of(options, "peers", {"rounds": grid.rounds, "peers": grid.peers})
    with Pool() as pool, tempfile.TemporaryDirectory() as folder:
        run(results, jobs_of(grid, options.data, pool, Path(folder)))
