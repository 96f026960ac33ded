"""Training in several processes: what a run computes, and that it is interrupted and resumed exactly."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitbatch.cli import _processes, main
from jitbatch.cli._errors import CommandError

SMALL = ["--limit", "22", "--batch-size", "8", "--hidden", "4", "--epochs", "2", "--train-size", "100", "--depth", "2"]


def test_what_is_missing_is_said() -> None:
    for given, text in (
        ({"processes": 2}, "Give --coordinator HOST:PORT, the same for all"),
        ({"coordinator": "127.0.0.1:1"}, "Give --processes N and --process I"),
        (
            {"coordinator": "127.0.0.1:1", "processes": 2, "process": 2},
            "of 2 processes the last is 1",
        ),
    ):
        with pytest.raises(CommandError, match=text):
            _processes.join(argparse.Namespace(**given))


def test_one_process_exchanges_nothing() -> None:
    together = _processes.Together()
    assert together.is_first
    assert together.of_first("a") == "a"
    assert together.heard(stop=True, save=False) == {"stop"}


def begin(directory: Path, *options: str) -> subprocess.Popen[bytes]:
    command = ["train", "listops", "--run", str(directory), "--loop-samples", "0", "--local-processes", "2", *options]
    return subprocess.Popen([sys.executable, "-m", "jitbatch", *command], start_new_session=True)


def losses(directory: Path) -> list[float]:
    path = directory / "log.jsonl"
    records: list[dict[str, Any]] = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )
    return [record["loss"] for record in records if record["kind"] == "step"]


@pytest.mark.slow
def test_two_processes_train_as_one_and_resume_exactly(tmp_path: Path) -> None:
    assert begin(tmp_path / "whole", *SMALL).wait(600) == 0
    assert main(["train", "listops", "--run", str(tmp_path / "one"), "--loop-samples", "0", *SMALL]) == 0
    np.testing.assert_allclose(losses(tmp_path / "whole"), losses(tmp_path / "one"), rtol=1e-4)

    running = begin(tmp_path / "parts", *SMALL)
    while not losses(tmp_path / "parts"):
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(600) in (0, 130)
    assert begin(tmp_path / "parts", "--resume").wait(600) == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
