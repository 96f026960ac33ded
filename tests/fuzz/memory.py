"""Whether memory grows: `python -m fuzz.memory` plans and runs batches of ever new structures and ever new cells.

What is remembered is bounded: 4,096 structures and 1,024 kinds of nodes of a function where none comes again, and 512
compiled steps. So memory is flat after these. The slope is that of a straight line through the last `--last` of all, as
a share of the memory in use.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jitbatch import Static, jitbatch


def resident() -> int:
    """Bytes of memory in use; on systems without /proc the most that was in use."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


TURN = 20
"""How many structures or cells are new in a batch."""


def run(fun: Any, samples: list[Any], plan_only: bool) -> None:
    w = jnp.float32(1)
    plan = fun.plan(w, samples)
    if not plan_only:
        fun.batch(w, plan)


def new_structures(plan_only: bool = False) -> Iterator[None]:
    """Batches of samples of structures that were not there before."""
    fun = jitbatch(lambda w, sample: w * sum(sample[1:]) + len(sample[0].value), executor="dispatch")
    for first in itertools.count(0, TURN):
        numbers = range(first, first + TURN)
        run(fun, [(Static(f"{number:09}"), *([1.0] * (1 + number % 5))) for number in numbers], plan_only)
        yield


def new_cells(plan_only: bool = False) -> Iterator[None]:
    """Batches of samples with cells that were not there before."""

    def fun(w: Any, sample: Any) -> Any:
        return jitbatch(lambda w, x: w * x + float(sample[0].value))(w, sample[1])

    batched = jitbatch(fun, executor="dispatch")
    for first in itertools.count(0, TURN):
        run(batched, [(Static(number), 1.0) for number in range(first, first + TURN)], plan_only)
        yield


def measure(
    turns: Iterator[None], count: int, seconds: float = float("inf"), points: int = 80
) -> tuple[int, list[int]]:
    """How many structures or cells there were, and memory after each of some parts of so many; or of so much time."""
    measured: list[int] = []
    end = time.monotonic() + seconds
    done = 0
    while done + TURN <= count and time.monotonic() < end:
        next(turns)
        done += TURN
        if done // TURN % max(count // TURN // points, 1) == 0:
            gc.collect()
            measured.append(resident())
    return done, measured


def slope(measured: list[int], last: float = 0.5) -> float:
    """How much the last part grows from its beginning to its end, as a share of what is in use."""
    part = np.array(measured[round(len(measured) * (1 - last)) :], float)
    if len(part) < 2:
        return float("nan")
    growth = np.polyfit(np.arange(len(part)), part, 1)[0] * (len(part) - 1)
    return float(growth / part.mean())


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz.memory", description=__doc__)
    parser.add_argument("--structures", type=int, default=40_000)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--last", type=float, default=0.5, help="the part that the slope is of")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--plan-only", action="store_true", help="run nothing: without what XLA compiles")
    options = parser.parse_args()
    kinds = (
        ("structures", new_structures(options.plan_only), options.structures),
        ("cells", new_cells(options.plan_only), options.cells),
    )
    kinds = [(name, turns, count) for name, turns, count in kinds if count]
    for name, turns, count in kinds:
        began = time.monotonic()
        done, measured = measure(turns, count, options.seconds / len(kinds))
        first, final, most = (round(size / 2**20) for size in (measured[0], measured[-1], max(measured)))
        grows = f"the last {options.last:.0%} grow by {slope(measured, options.last):+.2%}"
        took = time.monotonic() - began
        print(f"{done} {name} in {took:.0f} s: {first} to {final} MiB (most {most}), {grows}", flush=True)


if __name__ == "__main__":
    main()
