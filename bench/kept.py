"""What `jitbatch.keep_memory` changes: milliseconds of a training step and its page faults, with and without it.

    python bench/kept.py [--data DIR] [--cases sst sick] [--batch 64 256] [--hidden 128] [--rounds 3]

It is a setting of a process, so both run in processes of their own, which take turns.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
from fused import in_mode, make_settings, mean_loss
from timing import interleaved
from trees import minibatches

from jitbatch import keep_memory

STEPS = 30


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The step of each case and size in this process: its median time, and faults a step."""
    settings = argparse.Namespace(**vars(options) | {"quick": False, "loss": "root", "hidden": (options.hidden,)})
    measured = {}
    for case in make_settings(settings).cases.values():
        params = case.params(options.hidden)
        for size in options.batch:
            plan = jax.device_put(case.model.plan(params, next(minibatches(case.samples, size))))
            compiled: Any = jax.jit(in_mode(mean_loss(case.model), "training")).lower(params, plan).compile()
            run = partial(compiled, params, plan)
            jax.block_until_ready(run())
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            timing = interleaved({"step": run}, STEPS)["step"]
            faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (STEPS + 1)
            megabytes = compiled.memory_analysis().temp_size_in_bytes / 1e6
            measured[f"{case.name}, minibatch {size}, {megabytes:.0f} MB"] = (1e3 * timing.median, faults)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of `sick` and `sst`; without it, trees are random")
    parser.add_argument("--cases", nargs="+", choices=["sst", "sick"], default=["sst", "sick"])
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", choices=["with", "without"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        if options.process == "with":
            keep_memory()
        print(json.dumps(measure(options)))
        return
    ways: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    for number in range(options.rounds):
        for way in sorted(ways, reverse=number % 2 == 1):
            command = [sys.executable, __file__, *sys.argv[1:], "--process", way]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            ways[way].append(json.loads(done.stdout.splitlines()[-1]))
    for name in ways["with"][0]:
        told = []
        for way, rounds in ways.items():
            times, faults = zip(*(one[name] for one in rounds), strict=True)
            every = ", ".join(f"{time:.1f}" for time in times)
            told.append(f"{way} {statistics.median(times):.1f} ms ({every}), {statistics.median(faults):.0f} faults")
        print(f"{name}: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
