"""Numbers and keys as people write them, against the same in a way in which each number is a type, in one run.

    python bench/naive.py [--batch 16] [--batches 6] [--rounds 20]

The first table has types, programs that XLA compiled meanwhile (JAX's small ones among them) and samples a second in a
train step over some minibatches, planning and compilation included. The second has the price of numbers that are data
and not constants of the program.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import compilations, interleaved

from jitbatch import Keys, clear_caches, jitbatch

HIDDEN, WORDS = 32, 50


def make_params(rng: np.random.Generator) -> Any:
    def weights(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / shape[-1] ** 0.5, jnp.float32)

    return {"embed": weights(WORDS, HIDDEN), "left": weights(HIDDEN, HIDDEN), "right": weights(HIDDEN, HIDDEN)}


def make_tree(rng: np.random.Generator, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return int(rng.integers(WORDS))
    return [make_tree(rng, depth - 1) for _ in range(int(rng.integers(1, 6)))]


@jitbatch
def word(params: Any, token: Any) -> Any:
    return jnp.tanh(params["embed"][token])


@jitbatch
def dropped(params: Any, key: Any, children: list[Any]) -> Any:
    return jnp.tanh(sum(children) @ params["left"]) * jax.random.bernoulli(key, 0.9, (HIDDEN,))


def mean_by_operator(params: Any, key: Any, words: Any) -> Any:
    return sum(word(params, one) for one in words) / len(words)


def mean_by_function(params: Any, key: Any, words: Any) -> Any:
    return jnp.divide(sum(word(params, one) for one in words), len(words))


def split(params: Any, key: Any, tree: Any) -> Any:
    if not isinstance(tree, list):
        return word(params, tree)
    keys = jax.random.split(key, len(tree) + 1)
    return dropped(params, keys[0], [split(params, k, child) for k, child in zip(keys[1:], tree, strict=True)])


def counted(params: Any, key: Any, tree: Any) -> Any:
    keys = Keys(key)

    def walk(tree: Any) -> Any:
        is_node = isinstance(tree, list)
        return dropped(params, keys(), [walk(child) for child in tree]) if is_node else word(params, tree)

    return walk(tree)


def epoch(fun: Any, params: Any, batches: Sequence[Any]) -> tuple[int, int, float]:
    """Types of the last plan, compilations, and samples a second, of steps that plan each minibatch like the last."""
    clear_caches()
    jax.clear_caches()
    batched = jitbatch(fun)
    step = jax.jit(jax.value_and_grad(lambda params, plan: jnp.square(batched.batch(params, plan)).sum()))
    plan, start = None, time.perf_counter()
    with compilations() as durations:
        for keys, samples in batches:
            plan = batched.plan(params, keys, samples, like=plan)
            jax.block_until_ready(step(params, plan))
    seconds = time.perf_counter() - start
    assert plan is not None
    return plan.summary.types, len(durations), sum(len(samples) for _, samples in batches) / seconds


def encoder(written: bool) -> Callable[[Any, Any], Any]:
    """A binary tree, with four numbers in its cell: written in the code, or as variables."""
    one, two, three, four = 1.5, 0.5, 2.0, 1e-3

    def encode(params: Any, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return word(params, tree)
        left, right = (encode(params, child) for child in tree)
        left, right = left @ params["left"], right @ params["right"]
        if written:
            return jnp.tanh(1.5 * left + 0.5 * right / 2.0 + 1e-3)
        return jnp.tanh(one * left + two * right / three + four)

    return encode


def binary(rng: np.random.Generator, words: int) -> Any:
    if words == 1:
        return int(rng.integers(WORDS))
    left = int(rng.integers(1, words))
    return binary(rng, left), binary(rng, words - left)


def price(params: Any, trees: Sequence[Any], rounds: int) -> None:
    steps: dict[str, Callable[[], Any]] = {}
    for name, written in (("constants", True), ("data", False)):
        batched = jitbatch(encoder(written), executor="fused")
        plan = jax.device_put(batched.plan(params, trees))

        def loss(params: Any, plan: Any, batched: Any = batched) -> Any:
            return batched.batch(params, plan).sum()

        for mode, run in (("inference", loss), ("training", jax.value_and_grad(loss))):
            program = jax.jit(run).lower(params, plan).compile()
            steps[f"{mode}, {name}"] = lambda program=program, plan=plan: program(params, plan)
    timings = interleaved(steps, rounds)
    for mode in ("inference", "training"):
        constants, data = timings[f"{mode}, constants"], timings[f"{mode}, data"]
        ratio = data.median / constants.median
        print(f"{mode:10}  {1e3 * constants.median:.2f} ms constants, {1e3 * data.median:.2f} ms data: {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    params = make_params(rng)

    def minibatches(make: Callable[[], Any]) -> list[Any]:
        keys = iter(jax.random.split(jax.random.key(0), arguments.batches * arguments.batch))
        of = range(arguments.batch)
        return [([next(keys) for _ in of], [make() for _ in of]) for _ in range(arguments.batches)]

    sentences = minibatches(lambda: rng.integers(WORDS, size=int(rng.integers(3, 40))).tolist())
    trees = minibatches(lambda: make_tree(rng))
    print(f"{'':44}  types  compilations  samples/s")
    for name, fun, batches, partitionable in (
        ("total / len(words)", mean_by_operator, sentences, True),
        ("jnp.divide(total, len(words))", mean_by_function, sentences, True),
        ("Keys(key)", counted, trees, True),
        ("split(key, n)", split, trees, True),
        ("split(key, n), jax_threefry_partitionable off", split, trees, False),
    ):
        with jax.threefry_partitionable(partitionable):
            types, compiled, rate = epoch(fun, params, batches)
        print(f"{name:45} {types:6} {compiled:13} {rate:10.1f}", flush=True)
    price(params, [binary(rng, int(rng.integers(5, 30))) for _ in range(4 * arguments.batch)], arguments.rounds)


if __name__ == "__main__":
    main()
