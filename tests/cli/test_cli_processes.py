"""Training in several processes: what a run computes, and that it is interrupted and resumed exactly."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jitbatch.cli import _processes, main
from jitbatch.cli._errors import CommandError

HEARTBEAT = 8
"""Seconds after which a process that was killed is named."""

SMALL = ["--limit", "22", "--batch-size", "8", "--hidden", "4", "--epochs", "4", "--train-size", "100", "--depth", "2"]


def test_what_is_missing_is_said() -> None:
    for given, text in (
        ({"processes": 2}, "Give --coordinator HOST:PORT, the same for all"),
        ({"coordinator": "127.0.0.1:1"}, "Give --processes N and --process I"),
        (
            {"coordinator": "127.0.0.1:1", "processes": 2, "process": 2},
            "of 2 processes the last is 1",
        ),
        ({"coordinator": "10.0.0.1", "processes": 2, "process": 1}, "10.0.0.1 is no HOST:PORT, such as"),
    ):
        with pytest.raises(CommandError, match=text):
            _processes.join(argparse.Namespace(**given))


def test_a_cluster_that_is_not_there_is_said() -> None:
    """In a process of its own: JAX looks for clusters only before it has computed anything."""
    text = "from jitbatch.cli import main; raise SystemExit(main(['train', 'listops', '--coordinator', 'auto']))"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert re.search("no cluster is found by --coordinator auto, .* Give --coordinator HOST:PORT", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_one_process_exchanges_nothing() -> None:
    together = _processes.Together()
    assert together.is_first
    assert together.of_first("a") == "a"
    assert together.heard(stop=True, save=False) == {"stop"}


def test_a_process_that_fails_is_named_and_stops_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    assert _processes.start(2, ["train", "nothing"]) == 2
    assert re.search(r"jitbatch: process [01] of 2 has ended with exit code 2: the others stop", capfd.readouterr().err)


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Interrupts are not ignored, as they are in commands that a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize(("number", "forwarded"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")])
def test_local_processes_get_signals_once_and_none_is_left(number: str, forwarded: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    children = [subprocess.Popen(["sleep", "60"], process_group=0) for _ in range(2)]
    with _processes._ended(children), _processes._signals_forwarded(children) as received:
        os.kill(os.getpid(), signal.Signals[number])
        assert [child.wait(10) for child in children] == [-signal.Signals[forwarded]] * 2
        assert received == [signal.Signals[number]]
        children.append(subprocess.Popen(["sleep", "60"], process_group=0))
    assert children[-1].returncode == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is before


JOINS = """
import argparse, os, sys
from pathlib import Path
from jitbatch.cli import _processes
_processes.join(argparse.Namespace(coordinator="auto", heartbeat=20))
import jax
from jitbatch.errors import JitbatchError
os.chdir(sys.argv[1])
together = _processes.Together()
run = Path("run") if together.is_first else None
if run:
    run.mkdir()
print(jax.process_index(), jax.process_count(), together.of_first(f"said by {jax.process_index()}"))
print(together.directory_of_first(run).resolve(), os.listdir("."))
_processes.SEEN_WITHIN = 0.1
if not together.is_first:
    Path.exists = lambda path: False  # as on a machine with another disk
try:
    with together.told():
        together.directory_of_first(run)
except JitbatchError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("cluster", ["slurm", "open_mpi"])
def test_a_cluster_is_found_by_jax(cluster: str, tmp_path: Path) -> None:
    """With `--coordinator auto`, processes join by what their launcher has set in the environment. They begin in other
    directories, and find that of process 0."""
    port = free_port()
    found = []
    for process in ("0", "1"):
        set_by_launcher = {
            "slurm": {
                "SLURM_JOB_ID": "4100", "SLURM_STEP_NODELIST": "127.0.0.1,node[2-4]", "SLURM_NTASKS": "2",
                "SLURM_PROCID": process, "SLURM_LOCALID": process,
            },
            "open_mpi": {
                "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": process, "OMPI_COMM_WORLD_LOCAL_RANK": process,
            },
        }[cluster]  # fmt: skip
        ports = {
            "JAX_COORDINATOR_PORT": port, "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}", "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        directory = tmp_path / process
        directory.mkdir()
        found.append(start(sys.executable, "-c", JOINS, str(directory), **set_by_launcher, **ports))
    for process, running in enumerate(found):
        joined, shared, failed = ended(running, 0, 60).splitlines()[-3:]
        assert joined == f"{process} 2 said by 0"
        assert shared == f"{tmp_path / '0' / 'run'} {[] if process else ['run']}"
        assert failed.startswith("CommandError" if process else "ProcessError process 1 of 2 has failed: CommandError")
        assert "is not the run directory of process 0. Give --run a directory on a disk that all machines" in failed


def test_a_cluster_is_left_to_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """So whatever JAX detects is used: also Kubernetes, which cannot be imitated here."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **kwargs: given.update(kwargs, args=args))
    monkeypatch.setattr(jax.config, "update", lambda name, value: given.update({name: value}))
    assert _processes.join(argparse.Namespace(coordinator="auto", heartbeat=7)) == 7
    assert given.pop("jax_enable_preemption_service") is False
    assert given == {"args": (), "heartbeat_timeout_seconds": 7, "shutdown_timeout_seconds": 7}


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def command(directory: Path, *options: str) -> list[str]:
    own = ["train", "listops", "--run", str(directory), "--loop-samples", "0"]
    return [sys.executable, "-m", "jitbatch", *own, *options]


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a command; its output ends when no process that it has started is left."""
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    )


def ended(running: subprocess.Popen[str], code: int, seconds: float = 300) -> str:
    """Returns the output of a command, and of all processes that it has started."""
    try:
        printed, _ = running.communicate(timeout=seconds)
    finally:
        running.kill()
    assert running.returncode == code, printed
    return printed


def losses(directory: Path) -> list[float]:
    path = directory / "log.jsonl"
    records: list[dict[str, Any]] = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )
    return [record["loss"] for record in records if record["kind"] == "step"]


def wait_for_steps(running: subprocess.Popen[str], directory: Path, count: int) -> None:
    while len(losses(directory)) < count:
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.02)


def test_a_run_of_two_processes_is_stopped_killed_and_resumed_exactly(tmp_path: Path) -> None:
    whole, parts, copy = tmp_path / "whole", tmp_path / "parts", tmp_path / "copy"
    two = ("--local-processes", "2")
    printed = ended(start(*command(whole, *SMALL, *two)), 0)
    assert printed.count("results in") == printed.count("test, of epoch") == 1, "process 0 shows progress for all"
    steps = len(losses(whole))

    running = start(*command(parts, *SMALL, *two))
    wait_for_steps(running, parts, 2)
    running.send_signal(signal.SIGTERM)
    assert "Go on by: jitbatch train listops" in ended(running, 143)
    assert 2 <= len(losses(parts)) < steps

    newest = max((parts / "checkpoints").glob("[1-9]"))
    rooms = json.loads((newest / "about" / "metadata").read_text())["rooms"]
    assert "ListOpsTreeLSTM.loss(samples)" in rooms["update"], "the capacity that was agreed on"

    shutil.copytree(parts, copy)  # one process goes on in place of two
    assert main(["train", "listops", "--run", str(copy), "--loop-samples", "0", "--resume"]) == 0
    np.testing.assert_allclose(losses(copy), losses(whole), rtol=1e-4)

    before = len(losses(parts))
    options = [
        "--resume",
        "--processes",
        "2",
        "--coordinator",
        f"127.0.0.1:{free_port()}",
        "--heartbeat",
        str(HEARTBEAT),
    ]
    first, second = (start(*command(parts, *options, "--process", str(number))) for number in range(2))
    wait_for_steps(first, parts, before + 2)
    second.kill()
    begin = time.monotonic()
    printed = ended(first, first.wait(60))
    assert first.returncode != 0
    assert time.monotonic() - begin < 1.5 * HEARTBEAT + 5
    assert "process 1 of 2 has ended" in printed or "unhealthy (stopped sending heartbeats):\n1" in printed, printed
    ended(second, -signal.SIGKILL)

    ended(start(*command(parts, "--resume", *two)), 0)
    assert losses(parts) == losses(whole)
