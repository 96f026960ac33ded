"""Where the time of a step of the fused executor goes, by parts.

    python bench/breakdown.py --data DIR [--cases sst sick] [--batch 256] [--hidden 128] [--mode training]
        [--cores 1]

XLA runs on one core, where threads hide nothing, unless `--cores` says more. JAX's profiler notes how long each
instruction takes. An instruction is counted with the lower quartile of its durations, so that a busy machine changes
little (for those that take milliseconds it still may). What loops and conditionals cost besides their instructions is
the CPU time of a step without these.
"""

import argparse
import collections
import os
import re
import resource
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from fused import MODES, in_mode, make_settings, mean_loss
from trees import minibatches

from jitbatch import keep_memory

INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (?:\(.*?\)|\S+) ([\w-]+)\((?:.*op_name=\"([^\"]*)\")?")
CONTAINERS = ("while", "conditional", "call")
PRODUCTS = ("dot_general", "transpose", "conv_general_dilated")


def part_of(name: str) -> str:
    """The part of a step that an instruction belongs to, by the scopes of the operation it was made from."""
    direction = "backward" if "transpose(jvp(jit(_execute)))" in name else "forward"
    if "jit(_execute)" not in name:
        return "copies, and what is outside of the plan"
    if "/pair_sums/" in name:
        return f"{direction}, loop: sums over the readers of a value"
    if "/weights/" in name:
        return f"{direction}, gradients of weights after the loop"
    is_product = name.rsplit("/", 1)[-1] in PRODUCTS
    if "/while/body/" in name:
        return f"{direction}, loop: {'products' if is_product else 'all else'}"
    if re.search(r"jit\(_execute\)\)*/(jit\(_fill_arena\)/)?\w+$", name):
        return f"{direction}, arenas: filled, copied, gathered"
    return f"{direction}, outside of loops: {'products' if is_product else 'all else'}"


def durations(run: Callable[[], Any], steps: int) -> dict[str, list[float]]:
    """Milliseconds of every instruction, each time it ran."""
    times = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    times[event.name].append(event.duration_ns / 1e6)
    return times


def cpu_time(run: Callable[[], Any], steps: int) -> tuple[float, float, int]:
    """Milliseconds of CPU time a step, those of them in the kernel, and page faults: lower quartiles."""
    measured = []
    for _ in range(steps):
        before = resource.getrusage(resource.RUSAGE_SELF)
        jax.block_until_ready(run())
        after = resource.getrusage(resource.RUSAGE_SELF)
        system = after.ru_stime - before.ru_stime
        own = (after.ru_utime - before.ru_utime + system, system, after.ru_minflt - before.ru_minflt)
        measured.append(own)
    total, system, faults = np.percentile(np.array(measured), 25, axis=0)
    return total * 1e3, system * 1e3, int(faults)


def profile(title: str, compiled: Any, run: Callable[[], Any], steps: int, top: int) -> None:
    instructions = {m[1]: (m[2], m[3] or "") for m in map(INSTRUCTION.match, compiled.as_text().splitlines()) if m}
    jax.block_until_ready(run())
    total, system, faults = cpu_time(run, steps)
    parts: dict[str, float] = collections.defaultdict(float)
    single: list[tuple[float, float, str]] = []
    for name, times in durations(run, steps).items():
        opcode, made_from = instructions.get(name, ("", ""))
        if opcode and opcode not in CONTAINERS:
            cost = float(np.percentile(times, 25)) * len(times) / steps
            parts[part_of(made_from)] += cost
            single.append((cost, len(times) / steps, f"{name} {made_from}"))
    print(f"\n{title}: {total:.1f} ms of CPU time, {system:.1f} of them in the kernel, {faults} page faults, "
          f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:.0f} MB")  # fmt: skip
    for part, cost in sorted(parts.items()):
        print(f"  {cost:7.2f} ms  {part}")
    print(f"  {total - sum(parts.values()):7.2f} ms  loops, conditionals, calls: what is left")
    for cost, times, name in sorted(single, reverse=True)[:top]:
        print(f"    {cost:7.2f} ms {times:6.1f} x  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of `sick` and `sst`; without it, trees are random")
    parser.add_argument("--cases", nargs="+", choices=["sst", "sick"], default=["sst", "sick"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cores", type=int, default=1, help="XLA takes as many threads")
    parser.add_argument("--top", type=int, default=0, help="how many single instructions to show")
    options = parser.parse_args()
    keep_memory()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    settings = argparse.Namespace(
        data=options.data, quick=False, loss="root", hidden=(options.hidden,), batch=(options.batch,), rounds=1
    )
    settings.cases = options.cases
    for case in make_settings(settings).cases.values():
        params = case.params(options.hidden)
        plan = case.model.plan(params, next(minibatches(case.samples, options.batch)))
        for mode in options.mode:
            compiled = jax.jit(in_mode(mean_loss(case.model), mode)).lower(params, plan).compile()
            title = f"{case.name}, minibatch {options.batch}, hidden {options.hidden}, {mode}"
            profile(title, compiled, partial(compiled, params, plan), options.steps, options.top)


if __name__ == "__main__":
    main()
