"""Meshes with explicit axes, the default of `jax.make_mesh`, in processes with four devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [
        "sharded",
        "replicated",
        "mesh_that_is_not_set",
        "samples_on_a_mesh",
        "closed_over",
        "shards",
        "partly_manual",
        "named_axes_are_told",
    ],
)
def test_on_a_mesh_with_explicit_axes(name: str) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    ran = subprocess.run(
        [sys.executable, str(HERE / "meshes.py"), name],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [name]
