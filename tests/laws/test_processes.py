"""Processes agree: the same plans and bits whatever Python's hashes are, and no compilation that JAX's cache has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "process.py"


def run(seed: int, cache: Path) -> tuple[str, int]:
    """What a process prints, and how many programs it had to compile."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(SCRIPT), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return done.stdout, int(done.stderr.split()[-1])


def test_processes_with_different_hashes(tmp_path: Path) -> None:
    first, compiled = run(1, tmp_path)
    assert "fused" in first
    assert "dispatch" in first
    assert compiled > 0
    again, compiled = run(2, tmp_path)
    assert again == first
    assert compiled == 0
