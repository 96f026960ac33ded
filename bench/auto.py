"""Where batching cannot help, `auto` against `executor="per_sample"`: ratios of medians of interleaved runs.

Run with `python bench/auto.py`. Two workloads: one tree, again and again; and samples that share no cell type, each
with weights of its own shape. What `auto` settles for is measured, so it is given less patience than it has by default.
It settles for one sample at a time, or stays with batches.
`step` is a plan made and run in a jitted function for every call, `batch` is `.batch` on the samples.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from models import binary_params, logits
from timing import interleaved
from trees import random_tree

from jitbatch import Batched, jitbatch, keep_memory
from jitbatch.tune import auto as tuning

MOST_CALLS = 2_000


@jitbatch
def layer(weights: Any, x: Any) -> Any:
    return jnp.tanh(x @ weights)


def stacked(params: list[Any], x: Any) -> Any:
    """Layers that are as wide as the sample."""
    for weights in params:
        if weights.shape[0] == len(x):
            x = layer(weights, x)
    return x.sum()


def workloads(hidden: int) -> dict[str, tuple[Callable[..., Any], Any, list[Any]]]:
    rng = np.random.default_rng(0)
    widths = [hidden + 8 * number for number in range(4)]
    weights = [jnp.asarray(rng.normal(size=(width, width)) / width, jnp.float32) for width in widths for _ in range(4)]
    samples = [rng.normal(size=width).astype(np.float32) for width in widths]
    return {
        "one tree": (logits.__wrapped__, binary_params(hidden, embedding=hidden), [random_tree(rng, 20)]),
        "no type in common": (stacked, weights, samples),
    }


def calls_until_loop(auto: Batched[..., Any], params: Any, samples: list[Any]) -> int | None:
    """How often a batch is planned until that is for the loop executor; None if it stays with batches."""
    for number in range(MOST_CALLS):
        if auto.plan(params, samples).static.executor == "per_sample":
            return number
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    arguments = parser.parse_args()
    keep_memory()
    tuning.patience = 0.01
    rows: list[dict[str, Any]] = []
    print(f"hidden {arguments.hidden}, jax {jax.__version__} on {jax.default_backend()}")
    for name, (fun, params, samples) in workloads(arguments.hidden).items():
        auto: Batched[..., Any] = jitbatch(fun)
        loop: Batched[..., Any] = jitbatch(fun, executor="per_sample")
        calls = calls_until_loop(auto, params, samples)
        patient = None if calls is None else round(calls / tuning.patience)
        settled = "stays with batches" if calls is None else f"settled after {calls} calls, by default about {patient}"
        print(f"\n{name}: {settled}\n  {auto.plan(params, samples)!r}")
        for _ in range(2 * (calls or 0) + 2):
            auto.batch(params, samples)
        auto_step, loop_step = jax.jit(auto.batch), jax.jit(loop.batch)
        seconds = interleaved(
            {
                "auto, batch": lambda: auto.batch(params, samples),  # noqa: B023
                "loop, batch": lambda: loop.batch(params, samples),  # noqa: B023
                "auto, step": lambda: auto_step(params, auto.plan(params, samples)),  # noqa: B023
                "loop, step": lambda: loop_step(params, loop.plan(params, samples)),  # noqa: B023
            },
            arguments.rounds,
        )
        for what in ("batch", "step"):
            mine, other = (seconds[f"{one}, {what}"].median for one in ("auto", "loop"))
            print(f"  {what:5s} auto {1e3 * mine:.3f} ms, loop {1e3 * other:.3f} ms: ratio {mine / other:.2f}")
            row = {"workload": name, "what": what, "hidden": arguments.hidden, "calls to settle": patient}
            rows.append(row | {one: seconds[f"{one}, {what}"]._asdict() for one in ("auto", "loop")})
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
