"""Steps in two processes, and what the others say of one that is killed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
DEVICES = 2
"""Devices of each process."""
HEARTBEAT = 10
"""Seconds; as in `process_steps`."""

CHECKS = (
    "uneven_parts", "late", "errors", "networks", "values_and_terms", "ragged_and_keys", "new_cell_type",
    "second_kind", "many_epochs", "another_step",
)  # fmt: skip


def start(*checks: str) -> list[subprocess.Popen[str]]:
    """Starts two processes on this machine, which end by themselves after some minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "JAX_PLATFORMS": "cpu",
    }
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "process_steps.py"), str(process), "2", port, *checks],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]


def checked(process: subprocess.Popen[str]) -> tuple[str, ...]:
    """Returns the checks that a process prints before it says that it is running, or ends. Gloo prints, too."""
    assert process.stdout is not None
    names: list[str] = []
    while "running" not in (line := process.stdout.readline()):
        names += re.findall(r"checked (\w+)", line)
        if line == "":
            pytest.fail(f"a process has ended: {process.communicate()[1]}")
    return tuple(names)


def last_words(victim: int, *checks: str) -> str:
    """Runs checks in two processes, kills one of them while both train, and returns the errors of the other."""
    running = start(*checks, "killed")
    try:
        assert [checked(process) for process in running] == [checks, checks]
        running[victim].kill()
        begin = time.monotonic()
        other = running[1 - victim]
        _, errors = other.communicate(timeout=60)
        assert time.monotonic() - begin < 1.5 * HEARTBEAT
        assert other.returncode != 0
        return errors
    finally:
        for process in running:
            process.kill()
            with process:  # closes its pipes
                process.wait()


def test_steps_are_the_plain_loop_and_one_that_is_killed_is_named() -> None:
    errors = last_words(1, *CHECKS)
    assert "process 1 of 2 has ended" in errors or "unhealthy (stopped sending heartbeats):\n1" in errors, errors


def test_an_exception_between_steps_ends_all_processes_with_its_text() -> None:
    running = start("failed_in_a_loop")
    try:
        errors = [process.communicate(timeout=90)[1] for process in running]
        assert [process.returncode for process in running] == [1, 1], errors
        assert "KeyError: 'my own mistake in the loop'" in errors[1]
        assert "ProcessError: process 1 of 2 has failed: KeyError: 'my own mistake in the loop'" in errors[0]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_process_0_that_is_killed_is_named() -> None:
    errors = last_words(0)
    assert "process 0" in errors or "the leader" in errors, errors
