"""Whether memory grows: `python -m fuzz.memory` plans batches of ever new structures and ever new cells.

What is remembered is bounded, so after the caches are full memory is flat. The slope is that of a straight line through
the second half of the measurements, as a share of the memory in use.
"""

from __future__ import annotations

import argparse
import gc
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


def new_structures() -> Iterator[None]:
    """Plan one sample of a new structure each time."""
    fun = jitbatch(lambda w, sample: w * sum(sample[1:]) + len(sample[0].value))
    number = 0
    while True:
        number += 1
        fun.plan(jnp.float32(1), [(Static(str(number)), *([1.0] * (1 + number % 5)))])
        yield


def new_cells() -> Iterator[None]:
    """Plan one sample with a cell that was not there before."""

    @jitbatch
    def fun(w: Any, sample: Any) -> Any:
        return jitbatch(lambda w, x: w * x + float(sample[0].value))(w, sample[1])

    number = 0
    while True:
        number += 1
        fun.plan(jnp.float32(1), [(Static(number), 1.0)])
        yield


def measure(turns: Iterator[None], count: int, seconds: float = float("inf"), points: int = 40) -> list[int]:
    """Memory after each of some parts of so many turns, or of so much time."""
    measured: list[int] = []
    end = time.monotonic() + seconds
    for turn in range(count):
        next(turns)
        if (turn + 1) % max(count // points, 1) == 0:
            gc.collect()
            measured.append(resident())
        if time.monotonic() > end:
            break
    return measured


def slope(measured: list[int]) -> float:
    """How much the second half grows from its beginning to its end, as a share of what is in use."""
    half = np.array(measured[len(measured) // 2 :], float)
    growth = np.polyfit(np.arange(len(half)), half, 1)[0] * (len(half) - 1)
    return float(growth / half.mean())


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz.memory", description=__doc__)
    parser.add_argument("--structures", type=int, default=60_000)
    parser.add_argument("--cells", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    for name, turns, count in (
        ("structures", new_structures(), options.structures),
        ("cells", new_cells(), options.cells),
    ):
        measured = measure(turns, count, options.seconds / 2)
        grows = slope(measured)
        print(f"{name}: {measured[0] / 2**20:.0f} to {measured[-1] / 2**20:.0f} MiB, second half {100 * grows:+.2f} %")


if __name__ == "__main__":
    main()
