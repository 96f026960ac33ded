"""Peers as processes, each with a virtual environment of its own where it needs one."""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import Failed, Skipped
from workloads import WORKLOADS

from peers.worker import THREADS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".environments"
MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
"""What `jitbatch.keep_memory` does, for every peer alike."""
LONGEST = 600
"""Seconds after which a peer that has not answered is given up."""
_making = threading.Lock()


class Peer(NamedTuple):
    """How a peer is started.

    Attributes:
        command: the script and its arguments.
        environment: the name of its virtual environment, or None for this one.
        most: how many samples a round and a minibatch have at most, if it is very slow.
        distinct: how many samples it is given at most, if it compiles for each; they come again to fill a minibatch.
        workloads: what it can run.
        threads: how many it uses.
    """

    command: tuple[str, ...]
    environment: str | None = None
    most: int | None = None
    distinct: int | None = None
    workloads: tuple[str, ...] = WORKLOADS
    threads: int = THREADS


WITHOUT_MOLECULES = tuple(name for name in WORKLOADS if name != "molecules")
DYNET = ("dynet_autobatch.py", "--dynet-mem", "2048", "--dynet-autobatch")
PEERS = {
    "jitbatch": Peer(("ours.py",)),
    "jitbatch, planned in a thread": Peer(("ours.py", "2")),
    "DyNet agenda": Peer((*DYNET, "1"), "dynet", threads=1),
    "DyNet depth": Peer((*DYNET, "2"), "dynet", threads=1),
    "DyNet depth, words once": Peer((*DYNET, "2", "words-once"), "dynet", workloads=("SICK", "SST"), threads=1),
    "PyTorch by hand": Peer(("torch_levels.py",), "torch"),
    "pytorch-tree-lstm": Peer(("torch_tree_lstm.py",), "torch", workloads=("SICK",)),
    "DGL": Peer(("dgl_trees.py",), "dgl", workloads=("SICK", "SST")),
    "JAX by hand": Peer(("jax_levels.py",), workloads=("SICK", "SST")),
    "JAX padded vmap": Peer(("jax_padded.py",), workloads=WITHOUT_MOLECULES),
    "PyTorch per sample": Peer(("torch_eager.py",), "torch", most=64, workloads=WITHOUT_MOLECULES),
    "JAX per sample, jitted": Peer(("jax_loop.py",), distinct=16, workloads=WITHOUT_MOLECULES),
    "JAX per sample": Peer(("jax_loop.py", "eager"), most=4, workloads=WITHOUT_MOLECULES),
}

PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "dynet": (("dyNET38", "numpy<2"),),
    "torch": (("torch", "numpy", "pytorch-tree-lstm"),),
    # DGL has no release for this PyTorch. The last that does not load a library for one certain release of it still
    # runs, with an older setuptools than PyTorch asks for.
    "dgl": (("torch", "numpy<2", "dgl"), ("setuptools<70", "packaging")),
}
"""For each environment what is installed, one call of pip after the other. Releases are those of the extra `peers`."""


def releases() -> dict[str, str]:
    """What the extra `peers` asks for, by name."""
    project = tomllib.loads((HERE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {one.split("==")[0]: one for one in project["optional-dependencies"]["peers"]}


def python_of(environment: str | None) -> Path:
    """The interpreter of an environment, which is made if it is missing."""
    if environment is None:
        return Path(sys.executable)
    folder = ENVIRONMENTS / environment
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"    making the environment {environment}", flush=True)
        venv.create(folder, with_pip=True)
        for packages in PACKAGES[environment]:
            exact = [releases().get(package, package) for package in packages]
            # PyTorch for processors alone is much smaller; most indexes have only the general package.
            small = [f"{package}+cpu" if package.startswith("torch==") else package for package in exact]
            if (reason := install(python, small)) and (small == exact or (reason := install(python, exact))):
                raise Skipped(f"{' '.join(exact)} cannot be installed: {reason}")
        done.touch()
    return python


def install(python: Path, packages: Sequence[str]) -> str:
    """Install packages; if that fails, the reason is returned."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (reasons or ["pip failed"])[-1] if done.returncode else ""


class Process:
    """A running peer."""

    def __init__(self, peer: Peer):
        with _making:
            python = python_of(peer.environment)
        path = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent.parent)))
        threads = {name: str(peer.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        # Libraries print when they are imported, so answers have a pipe of their own.
        reading, writing = os.pipe()
        self._printed = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, HERE / peer.command[0], *peer.command[1:]],
            stdin=subprocess.PIPE, stdout=self._printed, stderr=self._printed, text=True, pass_fds=[writing],
            env={**os.environ, "PYTHONPATH": path, "ANSWERS": str(writing), **threads, **MEMORY},
        )  # fmt: skip
        os.close(writing)
        self._answers = os.fdopen(reading, encoding="utf-8")
        if hasattr(os, "sched_setaffinity"):
            # XLA takes as many threads as it may use cores.
            os.sched_setaffinity(self._process.pid, sorted(os.sched_getaffinity(0))[:THREADS])

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            if not select.select([self._answers], [], [], LONGEST)[0]:
                self._process.kill()
                raise Skipped(f"no answer within {LONGEST} seconds")
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._printed.seek(0)
            lines = [line for line in self._printed.read().splitlines() if line.strip()]
            raise Skipped(f"its process ended: {(lines or ['it said nothing'])[-1]}")
        reply = json.loads(answer)
        if "unsupported" in reply:
            raise Skipped(reply["unsupported"])
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def close(self) -> None:
        self._process.communicate()
        self._answers.close()
        self._printed.close()


class Pool:
    """The running peers. Their processes serve one task after the other."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}
        self._answers: dict[str, dict[str, Any]] = {}

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

    def once(self, name: str, task: dict[str, Any]) -> dict[str, Any]:
        """The answer to a task, which is remembered."""
        key = json.dumps([name, task])
        if key not in self._answers:
            self._answers[key] = self.ask(name, task=task)
        return self._answers[key]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._running.values():
            process.close()
