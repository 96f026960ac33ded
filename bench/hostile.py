"""What planning costs where a program or its data are unusual, and how that grows.

    python bench/hostile.py [--cases NAME ...] [--scale N]

Each case is timed at some size and at twice the size; a slope of 1 means that twice the size takes twice the time.
Times are processor time of the planning thread, the least of some repetitions.

- cell types: planning known samples with many cell types;
- a new cell type: planning a sample that has one new cell beside many known cell types;
- new cell types: the first plan of a sample with many cell types;
- statics: planning known samples of many `Static` values, in lists, which are taken apart in each call;
- tree, chain, many leaves: the first plan of one large sample of that form;
- nested: the first plan of a sample of nested tuples, where each level is a decorated call;
- operations: the first plan of a chain of plain `jnp` operations, at granularity "op" and in groups;
- shared parts: `t = (t, t)`, again and again: whether such a sample is planned or refused, and how long that takes;
- remembered: the memory of samples that are remembered, before and after `clear_caches()`.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.util.errors import JitbatchError

PARAMS = {"w": 0.1 * np.eye(4, dtype=np.float32), "embed": np.ones((100, 4), np.float32)}
X = np.ones(4, np.float32)
SMALL = 16
"""The size of a sample from which cells become known."""


@jitbatch
def leaf(params: Any, token: Any) -> jax.Array:
    return jnp.tanh(params["embed"][token])


@jitbatch
def compose(params: Any, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.tanh(left @ params["w"] + right)


def least(run: Callable[[], Any], times: int = 5) -> float:
    """The least seconds of some runs."""
    found = math.inf
    for _ in range(times):
        start = time.thread_time()
        run()
        found = min(found, time.thread_time() - start)
    return found


def balanced(leaves: int) -> Any:
    parts: list[Any] = list(range(leaves))
    while len(parts) > 1:
        parts = [tuple(parts[i : i + 2]) if len(parts[i : i + 2]) == 2 else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def encode(params: Any, tree: Any) -> Any:
    return compose(params, *(encode(params, t) for t in tree)) if isinstance(tree, tuple) else leaf(params, tree)


def first_plan(fun: Any, build: Callable[[int], Any], size: int) -> float:
    """The seconds of the first plan of a sample of some size, where smaller ones are known."""
    found = math.inf
    for extra in range(3):  # a structure is new once
        fun.plan(PARAMS, [build(SMALL)], like=None)
        sample = build(size + 2 * extra)
        start = time.thread_time()
        fun.plan(PARAMS, [sample], like=None)
        found = min(found, time.thread_time() - start)
    return found


def tree(size: int) -> float:
    fun = jitbatch(lambda params, tree: encode(params, tree).sum())
    return first_plan(fun, lambda size: balanced(size // 2), size)


def many_leaves(size: int) -> float:
    fun = jitbatch(lambda params, tokens: jnp.sum(sum(leaf(params, token) for token in tokens)))
    return first_plan(fun, lambda size: tuple(range(size)), size)


def chain(size: int) -> float:
    def run(params: Any, tokens: Any) -> Any:
        state = leaf(params, tokens[0])
        for token in tokens[1:]:
            state = compose(params, state, leaf(params, token))
        return state.sum()

    return first_plan(jitbatch(run), lambda size: tuple(range(size // 2)), size)


def nested(size: int) -> float:
    def sample(depth: int) -> Any:
        built: Any = (0,)
        for token in range(depth):
            built = (built, token)
        return built

    @jitbatch
    def level(params: Any, tree: Any) -> Any:
        below = leaf(params, tree[-1])
        return compose(params, level(params, tree[0]), below) if len(tree) == 2 else below

    return first_plan(jitbatch(lambda params, tree: level(params, tree).sum()), sample, size)


def operations(granularity: str) -> Callable[[int], float]:
    def measure(size: int) -> float:
        def run(params: Any, sample: Any) -> Any:
            x, steps = sample
            for _ in steps:
                x = jnp.tanh(x @ params["w"])
            return x.sum()

        return first_plan(jitbatch(run, granularity=granularity), lambda size: (X, (0,) * (size // 2)), size)

    return measure


def power_sum(size: int) -> Any:
    """A function of a sample `(x, Static(powers))`, with a cell type for each power."""

    def cell(power: int) -> Any:
        return jitbatch(lambda params, x: jax.lax.integer_pow(x, power))

    cells = [cell(2 + number) for number in range(size)]
    return jitbatch(lambda params, sample: sum(cells[number](params, sample[0]) for number in sample[1].value))


def cell_types(size: int) -> float:
    fun = power_sum(size)
    powers = Static(tuple(range(size)))
    samples = [(X, powers), (2 * X, powers)]
    fun.plan(PARAMS, samples)
    return least(lambda: fun.plan(PARAMS, samples))


def new_cell_type(size: int) -> float:
    times = 4
    fun = power_sum(size + times)
    fun.plan(PARAMS, [(X, Static(tuple(range(size))))])
    samples = iter([[(X, Static((*range(size), size + number)))] for number in range(times)])
    return least(lambda: fun.plan(PARAMS, next(samples), like=None), times)


def new_cell_types(size: int) -> float:
    return least(lambda: power_sum(size).plan(PARAMS, [(X, Static(tuple(range(size))))]), 1)


def statics(size: int) -> float:
    fun = jitbatch(lambda params, names: leaf(params, len(names)).sum())
    samples = [[Static(f"name{number}") for number in range(size)] for _ in range(8)]
    fun.plan(PARAMS, samples)
    return least(lambda: fun.plan(PARAMS, samples)) / len(samples)


CASES: dict[str, tuple[Callable[[int], float], int]] = {
    "cell types": (cell_types, 250),
    "a new cell type": (new_cell_type, 250),
    "new cell types": (new_cell_types, 500),
    "statics": (statics, 500),
    "tree": (tree, 5000),
    "many leaves": (many_leaves, 5000),
    "chain": (chain, 5000),
    "nested": (nested, 50),
    "operations, op": (operations("op"), 500),
    "operations, groups": (operations("subgraph"), 500),
}


def shared_parts() -> None:
    fun = jitbatch(lambda params, tree: leaf(params, 0).sum())
    part: Any = 1
    for depth in range(1, 41):
        part = (part, part)
        start = time.thread_time()
        try:
            if depth in (10, 40):
                fun.plan(PARAMS, [part])
                print(f"shared parts, depth {depth}: {time.thread_time() - start:.3f} s")
        except JitbatchError as error:
            print(f"shared parts, depth {depth}: refused after {time.thread_time() - start:.3f} s: {error}")


def resident() -> int:
    """The memory of this process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def remembered(count: int) -> None:
    fun = jitbatch(lambda params, tree: encode(params, tree).sum())
    rng = np.random.default_rng(0)

    def sample(leaves: int) -> Any:
        if leaves == 1:
            return int(rng.integers(100))
        left = int(rng.integers(1, leaves))
        return sample(left), sample(leaves - left)

    samples = [sample(20) for _ in range(count)]
    fun.plan(PARAMS, samples[:64])
    before = resident()
    for begin in range(64, count, 64):
        fun.plan(PARAMS, samples[begin : begin + 64])
    held = resident() - before
    clear_caches()
    left = resident() - before
    each, after = held / count / 1e3, left / count / 1e3
    print(f"remembered: {count} trees of 39 nodes, {each:.1f} kB each; {after:.1f} after clear_caches()")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "shared parts", "remembered"])
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all sizes")
    arguments = parser.parse_args()
    chosen = arguments.cases or [*CASES, "shared parts", "remembered"]
    for name in chosen:
        if name in CASES:
            measure, size = CASES[name]
            size = int(size * arguments.scale)
            clear_caches()
            once, twice = measure(size), measure(2 * size)
            slope = math.log2(twice / once)
            print(f"{name}: {1e6 * twice / (2 * size):.2f} us each of {2 * size}, slope {slope:.2f}", flush=True)
    if "shared parts" in chosen:
        shared_parts()
    if "remembered" in chosen:
        remembered(int(4000 * arguments.scale))


if __name__ == "__main__":
    main()
