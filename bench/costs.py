"""The constants of the cost model (`jitbatch/tune/cost.py`) on this machine, and how far its predictions are off.

    python bench/costs.py [--repeats N] [--predictions]

Each constant is a difference of two sizes, so that what both have in common cancels. Planning is processor time of its
thread, programs are wall time; both are the least of some repetitions, since a busy machine only adds to them. These
programs compute next to nothing. Real ones differ, so the constants of the model are rounded in such a way that its
predictions come close: with `--predictions`, batches of trees, of chains, and of samples that share no cell type are
planned and run by two executors, and their times stand beside the predicted ones.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from auto import stacked
from models import binary_params, logits
from timing import compilations
from trees import random_tree

from jitbatch import jitbatch, keep_memory
from jitbatch.tune.cost import PREDICTIONS, known_costs, load_of

SMALL, LARGE = 8, 40
"""Lengths of chains whose times are compared."""


def least(run: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The least seconds of some runs, after two that compile."""
    found = []
    for _ in range(repeats + 2):
        start = clock()
        jax.block_until_ready(run())
        found.append(clock() - start)
    return min(found[2:])


@jitbatch
def link(weights: Any, x: Any) -> Any:
    return jnp.sin(x + weights)


def chain(weights: Any, xs: Any) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = link(weights, y) * x
    return y.sum()


def links(length: int, width: int = 4) -> tuple[np.ndarray, ...]:
    return tuple(np.full(width, 1 + n / length, np.float32) for n in range(length))


def planning(repeats: int) -> dict[str, float]:
    params, rng = binary_params(8, embedding=8), np.random.default_rng(0)
    fun = jitbatch(logits.__wrapped__, executor="fused")
    samples = [random_tree(rng, 20) for _ in range(64)]
    fun.plan(params, samples)

    def seconds(count: int) -> tuple[float, int]:
        like = fun.plan(params, samples[:count])
        run = lambda: fun.plan(params, samples[:count], like=like)  # noqa: E731
        return least(run, repeats, time.thread_time), like.summary.nodes

    (one, few), (all_of_them, many) = seconds(1), seconds(64)
    node = (all_of_them - one) / (many - few)
    record = []
    for _ in range(10):
        new = [random_tree(rng, 20) for _ in range(64)]
        start = time.thread_time()
        nodes = fun.plan(params, new).summary.nodes
        record.append((time.thread_time() - start) / nodes)
    alone = jitbatch(logits.__wrapped__, executor="per_sample")
    copied = (least(lambda: alone.plan(params, samples), repeats, time.thread_time) - one) / many
    return {"plan": one - few * node, "node": node, "copied": copied, "record": min(record) - node}


def of_executor(executor: str, repeats: int) -> float:
    """The seconds of one more step of a chain, whose cells compute next to nothing."""
    weights = np.ones(4, np.float32)
    times = []
    for length in (SMALL, LARGE):
        fun = jitbatch(chain, executor=executor)
        plan = fun.plan(weights, [links(length)])
        run = jax.jit(fun.batch) if executor != "dispatch" else fun.batch
        times.append(least(lambda run=run, plan=plan: run(weights, plan), repeats))
    return (times[1] - times[0]) / (LARGE - SMALL)


def phase(repeats: int) -> float:
    """The seconds of one more cell type."""
    times = []
    for length in (SMALL, LARGE):
        weights = [np.ones((4 + n, 5 + n), np.float32) for n in range(length)]
        fun = jitbatch(stacked, executor="fused")
        plan = fun.plan(weights, [np.ones(4, np.float32)])
        run = jax.jit(fun.batch)
        times.append(least(lambda run=run, plan=plan, weights=weights: run(weights, plan), repeats))
    return (times[1] - times[0]) / (LARGE - SMALL)


def call(repeats: int) -> float:
    params = binary_params(8, embedding=8)
    run = jax.jit(lambda params: params["bias"] + 1)
    return least(lambda: run(params), repeats)


def arithmetic(repeats: int) -> dict[str, float]:
    """Of a product of the shapes that steps have, and of one that reads its weights for a single row."""
    rows, width, times = 64, 256, 64
    x, w = jnp.ones((rows, width)), jnp.ones((width, width)) / width

    @jax.jit
    def products(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, y: y @ w, x)

    flop = least(lambda: products(x, w), repeats) / (times * 2 * rows * width * width)
    row, large = jnp.ones((1, 512)), jnp.ones((512, 512)) / 512
    return {"flop": flop, "byte": least(lambda: products(row, large), repeats) / (times * large.nbytes)}


def compiling() -> dict[str, float]:
    weights = np.ones(4, np.float32)
    times = []
    for length in (SMALL, LARGE):
        with compilations() as seconds:
            fun = jitbatch(chain, executor="per_sample")
            jax.jit(fun.batch)(weights, fun.plan(weights, [links(length)]))
        times.append(max(seconds))
    equation = (times[1] - times[0]) / (3 * (LARGE - SMALL))
    return {"program": times[0] - 3 * SMALL * equation, "equation": equation}


def predictions(repeats: int) -> None:
    rng, costs = np.random.default_rng(0), known_costs()
    cases: dict[str, tuple[Any, Any, list[Any]]] = {}
    for hidden, leaves, count in ((32, 8, 1), (32, 20, 1), (128, 8, 1), (128, 20, 1), (32, 20, 4), (128, 20, 16)):
        trees = [random_tree(rng, leaves) for _ in range(count)]
        cases[f"{count} trees, hidden {hidden}, {leaves} leaves"] = logits.__wrapped__, binary_params(hidden), trees
    for length in (10, 40):
        cases[f"chain of {length}"] = chain, np.ones(64, np.float32), [links(length, 64)]
    widths = [128 + 8 * number for number in range(4)]
    weights = [jnp.asarray(rng.normal(size=(w, w)) / w, jnp.float32) for w in widths for _ in range(4)]
    cases["no type in common"] = stacked, weights, [rng.normal(size=w).astype(np.float32) for w in widths]
    for name, (fun, params, samples) in cases.items():
        found = []
        fused: Any = jitbatch(fun, executor="fused")
        load = load_of(fused.plan(params, samples).graphs)
        for executor in ("fused", "per_sample"):
            batched: Any = jitbatch(fun, executor=executor)
            run = jax.jit(batched.batch)
            plan = batched.plan(params, samples)
            whole = least(lambda run=run, batched=batched: run(params, batched.plan(params, samples)), repeats)  # noqa: B023
            alone = least(lambda run=run, plan=plan: run(params, plan), repeats)  # noqa: B023
            predicted = PREDICTIONS[executor].seconds(load, costs)
            took = f"{1e6 * whole:.0f} us (running {1e6 * alone:.0f})"
            found.append(f"{executor} {took}, predicted {1e6 * predicted:.0f}")
        print(f"{name}: {'; '.join(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--predictions", action="store_true")
    arguments = parser.parse_args()
    keep_memory()
    repeats = arguments.repeats
    if arguments.predictions:
        return predictions(repeats)
    measured = {
        "call": call(repeats),
        "step": of_executor("dispatch", max(repeats // 10, 3)),
        "phase": phase(repeats),
        "launch": of_executor("fused", repeats),
        "operation": of_executor("per_sample", repeats) / 3,
        **arithmetic(repeats),
        **planning(repeats),
        **compiling(),
    }
    for name, seconds in measured.items():
        print(f"{name}: measured {seconds:.2g}, in the model {getattr(known_costs(), name):.2g}")
    return None


if __name__ == "__main__":
    main()
