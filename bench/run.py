"""Batched against the per-sample loop: ratios of medians of interleaved runs on random trees.

Run with `make bench`. The loop is timed eagerly, as a person would write it, and with one jitted program for each tree
shape, compiled in advance, which nobody could afford in training: the trees of a corpus hardly repeat a shape.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from models import Params, binary_params, logits
from timing import interleaved
from trees import nodes_of, random_tree

from jitbatch import clear_caches


def compare(params: Params, trees: list[Any], rounds: int, training: bool) -> dict[str, float]:
    plan = logits.plan(params, trees)
    plain = logits.__wrapped__

    def batch_loss(p: Params, batch: Any) -> jax.Array:
        return logits.batch(p, batch).sum()

    def sample_loss(p: Params, tree: Any) -> jax.Array:
        return plain(p, tree).sum()

    over_batch, over_sample = batch_loss, sample_loss
    if training:
        over_batch, over_sample = jax.grad(batch_loss), jax.grad(sample_loss)
    fused = jax.jit(over_batch)
    shapes = {jax.tree.structure(tree): jax.jit(over_sample) for tree in trees}

    def loop(run: Callable[[Params, Any], Any], some: list[Any]) -> Any:
        total = run(params, some[0])
        for tree in some[1:]:
            total = jax.tree.map(jnp.add, total, run(params, tree))
        return total

    def jitted(p: Params, tree: Any) -> Any:
        return shapes[jax.tree.structure(tree)](p, tree)

    few = trees[:4]  # the eager loop is slow, and its time a tree is the same for all sizes
    contestants = {
        "fused": lambda: fused(params, logits.plan(params, trees)),
        "fused, planned before": lambda: fused(params, plan),
        "dispatch": lambda: over_batch(params, trees),
        "loop, jitted": lambda: loop(jitted, trees),
        "loop": lambda: loop(over_sample, few),
    }
    seconds = interleaved(contestants, rounds)
    return {name: s.median / len(few if name == "loop" else trees) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    params = binary_params(arguments.hidden, embedding=arguments.hidden)
    print(f"binary Tree-LSTM, hidden {arguments.hidden}, jax {jax.__version__} on {jax.default_backend()}")
    for size in arguments.batch:
        rng = np.random.default_rng(size)
        trees = [random_tree(rng, int(rng.integers(2, 31))) for _ in range(size)]
        nodes = sum(map(nodes_of, trees))
        clear_caches()
        start = time.perf_counter()
        plan = logits.plan(params, trees)
        cold = time.perf_counter() - start
        start = time.perf_counter()
        logits.plan(params, trees)
        warm = time.perf_counter() - start
        print(f"\nminibatch {size}: {plan!r}")
        print(f"  analysis: {cold / nodes * 1e6:.1f} us a node never seen, {warm / nodes * 1e6:.2f} us seen before")
        for training in (False, True):
            times = compare(params, trees, arguments.rounds, training)
            what = "training " if training else "inference"
            for name, seconds in times.items():
                ratio = seconds / times["fused"]
                print(f"  {what} {name:21s} {seconds * 1e3:9.3f} ms a tree {1 / seconds:8.0f} trees/s {ratio:7.2f}x")


if __name__ == "__main__":
    main()
