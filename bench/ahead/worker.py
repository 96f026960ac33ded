"""Compiles one program for an accelerator, and prints its costs as JSON. `aot.py` starts it in another environment.

python bench/ahead/worker.py '{"target": "v5e", "case": "SST", "batch": 64, "hidden": 128, ...}'
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fused
import jax
import jax.numpy as jnp
import workloads
from baselines import levels
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from ahead.costs import costs_of
from ahead.hlo import Module
from ahead.trips import Trips, trips_of
from jitbatch import jitbatch

HERE = Path(__file__).parent
TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1"}
PER_SCAN = 4
"""The number of levels in a scan of the program by hand."""

Made = tuple[Callable[..., Any], tuple[Any, Any], Trips]


def device_of(target: str) -> Any:
    """Returns a device that only the compiler knows."""
    if target in TOPOLOGIES:
        return topologies.get_topology_desc(TOPOLOGIES[target], platform="tpu").devices[0]
    config = (HERE / f"{target}.txtpb").read_text(encoding="utf-8")
    return topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1").devices[0]


def ours(work: Any, spec: dict[str, Any], params: Any) -> Made:
    model = jitbatch(executor="fused", platform=spec["platform"], loops=spec["loops"])(work.model.__wrapped__)
    plan = model.plan(params, work.samples[: spec["batch"]])
    return lambda params, plan: model.batch(params, plan).astype(jnp.float32).mean(), (params, plan), trips_of(plan)


def by_hand(work: Any, spec: dict[str, Any], params: Any) -> Made:
    batch = work.samples[: spec["batch"]]
    if work.name == "SST":
        tables = levels.prepare_binary(batch, levels.fit_binary([batch], PER_SCAN))
        return lambda params, tables: levels.binary_loss(params, tables, True), (params, tables), {}
    return levels.pair_loss, (params, levels.prepare_pairs(batch, levels.fit_pairs([batch], PER_SCAN))), {}


def products(work: Any, spec: dict[str, Any], params: Any) -> Made:
    """The products of a step alone; their sum, so that each has a gradient."""
    shapes = (fused.sst_products if work.name == "SST" else fused.sick_products)(params, work.samples[: spec["batch"]])
    xs, ws = [jnp.zeros((rows, n)) for rows, n, _ in shapes], [jnp.zeros((n, m)) for _, n, m in shapes]
    return lambda ws, xs: sum(jnp.sum(jnp.sin(x @ w)) for x, w in zip(xs, ws, strict=True)), (ws, xs), {}


PROGRAMS = {"jitbatch": ours, "by hand": by_hand, "products": products}


def train(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - (0.05 * g).astype(p.dtype), params, gradients), value

    return step


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    data = spec["data"] and Path(spec["data"])
    work = workloads.make_workload(spec["case"], data, 4096, spec["hidden"])
    params = jax.tree.map(lambda leaf: leaf.astype(spec["dtype"]), work.params)
    loss, arguments, trips = PROGRAMS[spec["program"]](work, spec, params)
    sharding = SingleDeviceSharding(device_of(spec["target"]))
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    is_training = spec["mode"] == "training"
    step = jax.jit(train(loss) if is_training else loss, donate_argnums=(0,) if is_training else ())
    lowered = step.lower(*abstract)
    begin = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - begin
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    if spec.get("dump"):
        Path(spec["dump"]).write_text(text, encoding="utf-8")
    row = {
        "compile": round(seconds, 1),
        "temporary": memory.temp_size_in_bytes,
        **asdict(costs_of(Module(text), trips, PER_SCAN if spec["program"] == "by hand" else 1)),
    }
    if spec["program"] == "jitbatch":
        _, plan = arguments
        row |= {"rows": plan.summary.rows, "padded_rows": plan.summary.padded_rows}
    return row


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
