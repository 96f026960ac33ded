"""A shard a core: a training step on two CPU devices against one, in turns.

    python bench/shards.py [--data DIR] [--cases listops sst sick] [--batch 64 256] [--hidden 128] [--rounds 15]

Both are `jitbatch.jit` of one loss, on the same minibatches with planning counted; equal calls are merged in each
shard. Besides the time of a step, the processor time of all its threads: what other programs on the machine leave of
the cores changes the first more than the second.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax

DEVICES = 2
jax.config.update("jax_num_cpu_devices", DEVICES)  # before anything is computed

from flax import nnx  # noqa: E402
from fused import make_settings  # noqa: E402
from timing import interleaved  # noqa: E402
from trees import minibatches  # noqa: E402

import jitbatch  # noqa: E402
from jitbatch.data import make_listops  # noqa: E402
from jitbatch.models import ListOpsTreeLSTM  # noqa: E402


def make_step(model: Any, mesh: jax.sharding.Mesh | None) -> Any:
    def step(params: Any, samples: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: model.batch(p, samples).mean())(params)
        return jax.tree.map(lambda p, g: p - 1e-4 * g, params, gradients), value

    return jitbatch.jit(step, mesh=mesh, samples="samples")


def contestants(options: argparse.Namespace) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields the name, the loss, the parameters and the samples of each case."""
    if "listops" in options.cases:
        samples = make_listops(0, [2000, 1, 1], 2)[0]
        yield "ListOps", ListOpsTreeLSTM.loss, ListOpsTreeLSTM(options.hidden, rngs=nnx.Rngs(0)), samples
    settings = argparse.Namespace(**vars(options) | {"quick": False, "loss": "root", "hidden": (options.hidden,)})
    for name, case in make_settings(settings).cases.items():
        yield name, case.model, case.params(options.hidden), case.samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the directory of sst and sick")
    parser.add_argument("--cases", nargs="+", default=["listops", "sst", "sick"])
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    mesh = jax.make_mesh((DEVICES,), ("data",))
    print("case      batch   time: one      two   ratio    processor: one      two   ratio")
    for name, loss, params, samples in contestants(options):
        for size in options.batch:
            batch = list(next(minibatches(samples, size)))
            steps = {"one": make_step(loss, None), "two": make_step(loss, mesh)}
            runs = {key: partial(step, params, batch) for key, step in steps.items()}
            print(f"{name:9} {size:5}", end="")
            for clock, width in ((time.perf_counter, 9), (time.process_time, 15)):
                timed = interleaved(runs, options.rounds, clock)
                one, two = (1e3 * timed[key].median for key in ("one", "two"))
                print(f"  {one:{width}.1f} {two:8.1f}   {one / two:5.2f}", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
