"""A train step on the device that this machine has: its time, and whether its results are those of the CPU.

    python bench/on_device.py [--data DIR] [--cases SST SICK] [--batches 64 256] [--hidden 128] [--rounds 20]

For users with a GPU or TPU: run it once and send back the file that it names at the end (about ten minutes). A row is a
minibatch. Contestants are the program made for this platform, the same with static trip counts, the program that is
made for CPUs, and levels by hand in JAX. `bench/report.py` shows the file.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import results
import workloads
from baselines import levels
from timing import interleaved

from jitbatch import jitbatch

PER_SCAN = 4
"""The number of levels in a scan of the program by hand."""
OPTIONS: dict[str, dict[str, Any]] = {
    "jitbatch": {},
    "static trip counts": {"loops": "static"},
    "made for CPUs": {"platform": "cpu"},
}

Step = Callable[[Any, Any], Any]


def step_of(loss: Step) -> Step:
    return jax.jit(jax.value_and_grad(loss))


def difference(got: Any, want: Any) -> float:
    """Returns the largest difference of a leaf, relative to the largest value in it."""
    pairs = zip(map(np.asarray, jax.tree.leaves(got)), map(np.asarray, jax.tree.leaves(want)), strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)) for a, b in pairs)


def by_hand(work: Any, batch: list[Any]) -> tuple[Step, Any]:
    if work.name == "SST":
        tables = levels.prepare_binary(batch, levels.fit_binary([batch], PER_SCAN))
        return lambda params, tables: levels.binary_loss(params, tables, True), tables
    return levels.pair_loss, levels.prepare_pairs(batch, levels.fit_pairs([batch], PER_SCAN))


def measure(case: str, data: Path | None, batch: int, hidden: int, rounds: int) -> results.Row:
    work = workloads.make_workload(case, data, 4096, hidden)
    samples = work.samples[:batch]
    device = jax.devices()[0]
    params = jax.device_put(work.params, device)
    contestants, found, want = {}, {}, None
    cpu = jax.devices("cpu")[0]
    for name, options in OPTIONS.items():
        model = jitbatch(executor="fused", **options)(work.model.__wrapped__)
        plan = model.plan(params, samples)
        step = step_of(lambda params, plan, model=model: model.batch(params, plan).mean())
        on_device = jax.device_put(plan, device)
        contestants[name] = lambda step=step, plan=on_device: step(params, plan)
        found[name] = contestants[name]()
        if name == "jitbatch":
            want = step(*jax.device_put((params, plan), cpu))
    loss, tables = by_hand(work, samples)
    step = step_of(loss)
    tables = jax.device_put(tables, device)
    contestants["by hand"] = lambda: step(params, tables)
    differences = {name: difference(got, want) for name, got in found.items()}
    times = interleaved(contestants, rounds)
    return {"differences": differences, **{name: timing._asdict() for name, timing in times.items()}}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with `sst` and `sick`; without it, trees are random")
    parser.add_argument("--cases", nargs="+", choices=("SST", "SICK"), default=["SST", "SICK"])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=results.FOLDER / "on_device.json")
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    settings = {
        "device": device.device_kind,
        "platform": device.platform,
        "data": "random trees" if options.data is None else "training sets",
        "hidden": options.hidden,
    }
    file = results.Results(options.out, "on_device", settings)
    jobs = [
        results.Job(
            file,
            {"case": case, "minibatch": batch},
            lambda case=case, batch=batch: measure(case, options.data, batch, options.hidden, options.rounds),
        )
        for case in options.cases
        for batch in options.batches
    ]
    results.run(jobs)
    print(f"wrote {options.out}: please send it back")


if __name__ == "__main__":
    main()
