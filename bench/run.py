"""Batched against the per-sample loop: ratios of medians of interleaved runs on random trees.

Run with `make bench`. The loop is timed eagerly, as a person would write it, and with one jitted program for each tree
shape, compiled in advance, which nobody could afford in training: the trees of a corpus hardly repeat a shape.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import clear_caches, jitbatch

Params = dict[str, jax.Array]


class State(NamedTuple):
    h: jax.Array
    c: jax.Array


@jitbatch
def leaf(params: Params, token: jax.Array) -> State:
    i, o, u = jnp.split(params["embed"][token] @ params["leaf"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def compose(params: Params, left: State, right: State) -> State:
    i, fl, fr, o, u = jnp.split(left.h @ params["left"] + right.h @ params["right"] + params["bias"], 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(fl) * left.c + jax.nn.sigmoid(fr) * right.c
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def logits(params: Params, tree: Any) -> jax.Array:
    def encode(t: Any) -> State:
        return compose(params, *map(encode, t)) if isinstance(t, tuple) else leaf(params, t)

    return encode(tree).h @ params["out"]


def make_params(hidden: int, vocabulary: int = 1000) -> Params:
    shapes = {
        "embed": (vocabulary, hidden),
        "leaf": (hidden, 3 * hidden),
        "left": (hidden, 5 * hidden),
        "right": (hidden, 5 * hidden),
        "bias": (5 * hidden,),
        "out": (hidden, 5),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {name: 0.1 * jax.random.normal(key, s) for key, (name, s) in zip(keys, shapes.items(), strict=True)}


def random_tree(rng: np.random.Generator, leaves: int) -> Any:
    if leaves == 1:
        return int(rng.integers(1000))
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def nodes_of(tree: Any) -> int:
    return 1 + sum(map(nodes_of, tree)) if isinstance(tree, tuple) else 1


def interleaved(contestants: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, float]:
    """The median time a tree of each contestant, run in turns after one warm-up, given how many trees it runs."""
    for run, _ in contestants.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (run, trees) in contestants.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append((time.perf_counter() - start) / trees)
    return {name: statistics.median(measured) for name, measured in times.items()}


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
    return interleaved(
        {
            "fused": (lambda: fused(params, logits.plan(params, trees)), len(trees)),
            "fused, planned before": (lambda: fused(params, plan), len(trees)),
            "dispatch": (lambda: over_batch(params, trees), len(trees)),
            "loop, jitted": (lambda: loop(jitted, trees), len(trees)),
            "loop": (lambda: loop(over_sample, few), len(few)),
        },
        rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    params = make_params(arguments.hidden)
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
