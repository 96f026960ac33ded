"""Sets of chunk widths against each other: milliseconds of a step on the same minibatch, medians of interleaved runs.

    python bench/widths.py --data DIR [--case sst | sick] [--batches 1 64 256] [--rounds 20]

DIR holds `sst/train.txt` or `sick/train/`. Each set is widths, and how many rows a chunk costs before its first.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import models
import numpy as np
from timing import interleaved

from jitbatch import clear_caches, keep_memory
from jitbatch.data import Vocabulary, read_sick, read_sst
from jitbatch.execute.fused.targets import CPU, TARGETS

SETS: dict[str, tuple[tuple[int, ...], int]] = {
    "as it is": (CPU.widths, CPU.launch),
    "8 to 512": ((8, 32, 128, 512), 12),
    "2 to 256": ((2, 4, 16, 64, 256), 6),
    "2 to 512": ((2, 8, 32, 128, 512), 6),
}


def steps(fun: Any, params: Any, samples: Sequence[Any], widths: tuple[int, ...], launch: int) -> list[Callable]:
    """Inference and training of a minibatch, compiled for these widths."""
    TARGETS["cpu"] = replace(CPU, widths=widths, launch=launch)
    clear_caches()
    plan = jax.device_put(fun.plan(params, samples))

    def loss(params: Any, plan: Any) -> Any:
        return fun.batch(params, plan).sum()

    programs = [jax.jit(one).lower(params, plan).compile() for one in (loss, jax.value_and_grad(loss))]
    return [lambda program=program: program(params, plan) for program in programs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--case", choices=("sst", "sick"), default="sst")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 64, 256))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    keep_memory()
    words = Vocabulary()
    if arguments.case == "sst":
        samples, fun, make_params = (
            read_sst(arguments.data / "sst/train.txt", words),
            models.all_loss,
            models.binary_params,
        )
    else:
        samples, fun, make_params = (
            read_sick(arguments.data / "sick/train", words),
            models.pair_loss,
            models.pair_params,
        )
    params = make_params(arguments.hidden, len(words))
    order = np.random.default_rng(0).permutation(len(samples))
    for size in arguments.batches:
        minibatch = [samples[i] for i in order[:size]]
        both = {name: steps(fun, params, minibatch, *widths) for name, widths in SETS.items()}
        for number, mode in enumerate(("inference", "training")):
            timings = interleaved({name: programs[number] for name, programs in both.items()}, arguments.rounds)
            told = "  ".join(f"{name}: {1e3 * timing.median:.2f}" for name, timing in timings.items())
            print(f"{arguments.case}, minibatch {size}, {mode}, ms: {told}", flush=True)


if __name__ == "__main__":
    main()
