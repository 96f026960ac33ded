"""Steps on a mesh: values, gradients and messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch as jb
from jitbatch import jitbatch
from jitbatch.step.buffers import pack
from jitbatch.util.errors import ArgumentError

HERE = Path(__file__).parents[1]
CHECKED = (
    "equal_and_uneven_parts", "set_meshes", "two_axes", "padding_and_prefetch", "ragged", "keys", "accumulated",
    "capacities", "other_meshes",
)  # fmt: skip


def test_steps_on_four_devices_are_the_plain_loop() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    ran = subprocess.run(
        [sys.executable, str(HERE / "mesh_steps.py"), *CHECKED],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert tuple(ran.stdout.split()) == CHECKED


def one_device(**options: Any) -> Any:
    double = jitbatch(lambda scale, x: scale * x, **options)
    return jb.jit(lambda scale, xs: double.batch(scale, xs), mesh=jax.make_mesh((1,), ("data",)))


def test_an_axis_is_of_the_mesh() -> None:
    with pytest.raises(ArgumentError, match="axis='model' is no axis of the mesh, which has data"):
        jb.jit(lambda xs: xs, mesh=jax.make_mesh((1,), ("data",)), axis="model")
    with pytest.raises(ArgumentError, match="axis=None is no axis of the mesh, which has data, model"):
        jb.jit(lambda xs: xs, mesh=jax.make_mesh((1, 1), ("data", "model")))
    with pytest.raises(ArgumentError, match="axis='data' is an axis of a mesh: give the mesh"):
        jb.jit(lambda xs: xs, axis="data")
    with pytest.raises(ArgumentError, match="timeout=3 is for the processes of a mesh: give the mesh"):
        jb.jit(lambda xs: xs, timeout=3)


def test_results_in_lists_are_refused() -> None:
    with pytest.raises(ArgumentError, match='has out="list", but on a mesh the results of all samples are arrays'):
        one_device(out="list")(2.0, [1.0, 2.0])


def test_a_step_without_samples_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"gives no samples to `.batch`: on a mesh there is nothing to split"):
        jb.jit(lambda x: 2 * x, mesh=jax.make_mesh((1,), ("data",)))(jnp.ones(3))


def test_a_plan_of_ones_own_is_refused() -> None:
    double = jitbatch(lambda scale, x: scale * x)
    step = jb.jit(lambda scale, plan: double.batch(scale, plan), mesh=jax.make_mesh((1,), ("data",)))
    (plan,) = double.plans(jnp.float32(2), [[1.0, 2.0]])
    with pytest.raises(
        ArgumentError, match=r"is not for a step on a mesh.*`for samples in step.prefetch\(minibatches\)`"
    ):
        step(jnp.float32(2), plan)


def test_rows_are_as_many_as_samples() -> None:
    mesh = jax.make_mesh((1,), ("data",))
    double = jitbatch(lambda scale, x: scale * x)
    step = jb.jit(lambda scale, xs, ys: double.batch(scale, xs).sum() + ys.sum(), mesh=mesh, rows="ys")
    with pytest.raises(ArgumentError, match="ys has 3 rows, but there are 2 samples"):
        step(2.0, [1.0, 2.0], np.ones(3))


def test_leaves_are_packed_by_dtype() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    tree = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.ones((2, 2, 2), np.float32), "keys": keys[:, None],
        "c": np.arange(2, dtype=np.int32), "empty": np.zeros((2, 0, 3), np.float32),
    }  # fmt: skip
    packed = pack(tree)
    assert sorted(str(buffer.dtype) for buffer in packed.buffers) == ["float32", "int32", "uint32"]
    first = packed.first_shard()
    assert jax.tree.map(np.shape, first) == {"a": (3,), "b": (2, 2), "keys": (1,), "c": (), "empty": (0, 3)}
    assert first["a"].tolist() == [0, 1, 2]
    assert first["c"] == 0
    assert first["keys"][0] == keys[0]
