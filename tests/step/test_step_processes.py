"""Steps in several processes: the agreement between them, what goes wrong in one, and one that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
DEVICES = 2
"""Devices of each process."""


def start(*checks: str) -> list[subprocess.Popen[str]]:
    """Starts two processes on this machine; they end by themselves."""
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


def ended(running: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Waits until all have ended well, and returns the checks that they printed."""
    try:
        results = [one.communicate(timeout=300) for one in running]
    finally:
        for one in running:
            one.kill()
    for one, (_, errors) in zip(running, results, strict=True):
        assert one.returncode == 0, errors
    return [[line for line in printed.splitlines() if not line.startswith("[Gloo]")] for printed, _ in results]


@pytest.mark.slow
def test_values_and_gradients_in_two_processes_are_the_plain_loop() -> None:
    checks = ("values_and_terms", "ragged_and_keys", "new_cell_type")
    assert ended(start(*checks)) == [list(checks)] * 2


def test_processes_agree_and_what_goes_wrong_in_one_raises_in_all() -> None:
    assert ended(start("uneven_parts", "errors")) == [["uneven_parts", "errors"]] * 2


@pytest.mark.slow
def test_a_process_that_is_killed_is_named_by_the_others() -> None:
    first, second = running = start("killed")
    try:
        assert second.stdout is not None
        assert any(line == "running\n" for line in second.stdout)
        second.send_signal(signal.SIGKILL)
        begin = time.monotonic()
        _, errors = first.communicate(timeout=60)
    finally:
        for one in running:
            one.kill()
        second.communicate()
    assert first.returncode != 0
    assert time.monotonic() - begin < 40, "longer than the heartbeat takes"
    assert "process 1" in errors or "unhealthy (stopped sending heartbeats):\n1" in errors, errors
