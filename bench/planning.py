"""How long planning takes, and how much of it is left when it is done ahead of time.

    python bench/planning.py --data DIR [--cases sst sick] [--batches 64 256] [--hidden 128] [--trees N] [--apart]
        [--only-planning] [--json FILE]

DIR holds `sst/train.txt` and `sick/train/`; without it, trees are random. The case `sst-root` has a loss at the root
alone; in `sst-encoded`, which is the same otherwise, and in `sick-encoded`, a decorated function walks the trees, and
not a plain one. For each case:

- cold: microseconds a node for minibatches of structures that were never met, in a context that knows the cells: the
  median of the minibatches, and the mean, which full collections of Python's garbage collector are a part of;
- warm: the median for structures that were met before;
- cold cpu, warm cpu: the medians as processor time of the planning thread, which says more on a busy machine;
- share: warm planning by the time of a fused train step;
- cold epoch: the time of an epoch with `f.plans` (planning and training) over never-seen samples, by that of the next
  one over the same samples;
- ahead: the time of an epoch with `f.plans(..., prefetch=2)`, by that of the same steps on plans made before.

With `--only-planning`, the first four of these alone are measured, and nothing is compiled.

A node is a call that the batch computes or merges (`plan.summary.nodes`). With `--apart`, XLA has one core, and
planning the others: what planning ahead hides where steps leave a core to it, as on an accelerator.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import models
import numpy as np
from trees import minibatches, random_pairs, random_sentences

from jitbatch import Plan, clear_caches, keep_memory
from jitbatch.data import Vocabulary, read_sick, read_sst

CASES = ("sst", "sst-root", "sst-encoded", "sick", "sick-encoded")


def read(arguments: argparse.Namespace) -> dict[str, tuple[Any, Any, list[Any]]]:
    """For each case a function, its parameters and samples in a random order."""
    cases: dict[str, tuple[Any, Any, list[Any]]] = {}
    pairs = models.pair_params, read_sick, "sick/train", random_pairs
    sentences = models.binary_params, read_sst, "sst/train.txt", random_sentences
    for name, fun, make_params, read_file, path, make in (
        ("sst", models.all_loss, *sentences),
        ("sst-root", models.root_loss, *sentences),
        ("sst-encoded", models.encoded_root_loss, *sentences),
        ("sick", models.pair_loss, *pairs),
        ("sick-encoded", models.encoded_pair_loss, *pairs),
    ):
        if name not in arguments.cases:
            continue
        rng, words = np.random.default_rng(0), Vocabulary()
        samples = read_file(arguments.data / path, words) if arguments.data else make(rng, arguments.trees)
        samples = [samples[i] for i in rng.permutation(len(samples))[: arguments.trees]]
        cases[name] = fun, make_params(arguments.hidden, max(len(words), 1000)), samples
    return cases


def start_apart() -> None:
    """Start XLA, whose threads stay on the core that they are started on, and give this thread the other cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    jax.block_until_ready(jax.jit(lambda x: x @ x)(np.ones((256, 256), np.float32)))
    os.sched_setaffinity(0, cores - {min(cores)})


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def measure(fun: Any, params: Any, samples: list[Any], size: int, only_planning: bool) -> dict[str, float]:
    batches = list(minibatches(samples, size))
    known, new = batches[: len(batches) // 2], batches[len(batches) // 2 :]

    @jax.jit
    def step(params: Any, plan: Plan) -> Any:
        loss, grads = jax.value_and_grad(lambda p: fun.batch(p, plan).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss

    def epoch(plans: Iterable[Plan]) -> Any:
        current, loss = params, None
        for plan in plans:
            current, loss = step(current, plan)
        return loss

    # The sizes of all batches, so that nothing compiles below; made apart, so that half of the structures stay new.
    largest: Any = None
    for batch in known:
        largest = fun.plan(params, batch, like=largest)
    cold, cold_cpu, nodes = [], [], []
    for batch in new:
        start, cpu = time.perf_counter(), time.thread_time()
        largest = fun.plan(params, batch, like=largest)
        cold.append(time.perf_counter() - start)
        cold_cpu.append(time.thread_time() - cpu)
        nodes.append(largest.summary.nodes)
    fun.plan(params, batches[0], like=largest)
    warm, warm_cpu, counts = [], [], []
    for _ in range(3):
        for batch in batches:
            start, cpu = time.perf_counter(), time.thread_time()
            plan = fun.plan(params, batch, like=largest)
            warm.append(time.perf_counter() - start)
            warm_cpu.append(time.thread_time() - cpu)
            counts.append(plan.summary.nodes)

    planned = {
        "nodes a minibatch": statistics.mean(counts),
        "cold us a node": 1e6 * statistics.median(np.array(cold) / nodes),
        "cold us a node, mean": 1e6 * sum(cold) / sum(nodes),
        "cold cpu us a node": 1e6 * statistics.median(np.array(cold_cpu) / nodes),
        "warm cpu us a node": 1e6 * statistics.median(np.array(warm_cpu) / counts),
        "warm us a node": 1e6 * statistics.median(np.array(warm) / counts),
        "warm ms a minibatch": 1e3 * statistics.median(warm),
    }
    if only_planning:
        return planned

    ready = [jax.device_put(fun.plan(params, batch, like=largest)) for batch in batches]
    epoch(ready)  # compiles
    executed, ahead, in_turn = [], [], []
    for _ in range(3):
        executed.append(seconds(lambda: epoch(ready)))
        ahead.append(seconds(lambda: epoch(fun.plans(params, batches, prefetch=2, like=largest))))
        in_turn.append(seconds(lambda: epoch(fun.plan(params, batch, like=largest) for batch in batches)))
    capacity, cold_epochs = largest.capacity, []
    for _ in range(3):
        clear_caches()
        like, *_ = [fun.plan(params, batch, like=capacity) for batch in known]
        epoch([like])  # compiles
        first, *again = (seconds(lambda like=like: epoch(fun.plans(params, new, like=like))) for _ in range(4))
        cold_epochs.append(first / statistics.median(again))
    warm_step = statistics.median(executed) / len(batches)
    return planned | {
        "ms a step": 1e3 * warm_step,
        "share of a step": statistics.median(warm) / warm_step,
        "cold epoch by warm": statistics.median(cold_epochs),
        "epoch ahead by execution": statistics.median(ahead) / statistics.median(executed),
        "epoch in turn by execution": statistics.median(in_turn) / statistics.median(executed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How long planning takes.")
    parser.add_argument("--data", type=Path, help="the folder with sst/train.txt and sick/train")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=("sst", "sick"))
    parser.add_argument("--batches", nargs="+", type=int, default=(64, 256))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--trees", type=int, default=2048)
    parser.add_argument("--apart", action="store_true", help="one core for XLA, the others for planning")
    parser.add_argument("--only-planning", action="store_true", help="nothing is compiled or trained")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_memory()
    if arguments.apart:
        start_apart()
    rows = []
    for name, case in read(arguments).items():
        for size in arguments.batches:
            clear_caches()
            row = {
                "case": name,
                "minibatch": size,
                "apart": arguments.apart,
                **measure(*case, size, arguments.only_planning),
            }
            rows.append(row)
            print(f"{name}, minibatch {size}:", flush=True)
            for key, value in list(row.items())[3:]:
                print(f"    {key:28} {value:8.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
