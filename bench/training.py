"""The training loop that a person writes first: how often it compiles, and how fast it is.

    python bench/training.py --data DIR [--cases SST SICK] [--batch 64 256] [--epochs 3] [--ways ...] [--json FILE]

DIR holds `sst/train.txt` and `sick/train/`; without it, samples are random. Each way trains the same model for some
epochs, in the same shuffles:

- `jit`: a step under `jitbatch.jit`, called with lists of samples;
- `plans`: a step under `jax.jit`, called with plans of `f.plans`, each like the one before;
- `plan`: a step under `jax.jit`, called with `f.plan(params, minibatch)` and nothing else;
- `alone`: the same with `like=None`, each plan with the sizes of its own minibatch (slow: one epoch at most).

The ways take turns, epoch by epoch, so that a busy machine slows all of them. Reported: compilations of the step in
each epoch, and samples a second of the epochs after the first. The ratio of a way is its time by that of `plans`, the
median over epochs, with the lowest and the highest.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from fused import Case, make_settings
from timing import compilations
from trees import minibatches

import jitbatch

WAYS = ("jit", "plans", "plan", "alone")
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


def make_step(case: Case, optimizer: Any) -> Step:
    def step(params: Any, state: Any, samples: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(lambda p: case.model.batch(p, samples).mean())(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


class Way:
    """One way to train: its parameters, and what an epoch cost."""

    def __init__(self, name: str, case: Case, hidden: int):
        self.name, self.case = name, case
        optimizer = optax.adam(1e-3)
        self.params = case.params(hidden)
        self.state = optimizer.init(self.params)
        step = make_step(case, optimizer)
        self.step: Any = jitbatch.jit(step) if name == "jit" else jax.jit(step)
        self.last: Any = None  # the sizes of `plans` are kept from epoch to epoch
        self.seconds: list[float] = []
        self.compilations: list[int] = []
        self.losses: list[float] = []

    def inputs(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.name == "plans":
            return map(self._remembered, self.case.model.plans(self.params, batches, like=self.last))
        like: Any = {"plan": "auto", "alone": None}.get(self.name)
        return batches if self.name == "jit" else (self.case.model.plan(self.params, b, like=like) for b in batches)

    def _remembered(self, plan: Any) -> Any:
        self.last = plan
        return plan

    def epoch(self, size: int, order: np.ndarray) -> None:
        loss: Any = None
        start = time.perf_counter()
        with compilations() as durations:
            for batch in self.inputs(minibatches(self.case.samples, size, order)):
                self.params, self.state, loss = self.step(self.params, self.state, batch)
            self.losses.append(float(loss))
        self.seconds.append(time.perf_counter() - start)
        self.compilations.append(sum(seconds > 0.2 for seconds in durations))


def contest(case: Case, size: int, hidden: int, epochs: int, ways: list[str]) -> Iterator[dict[str, Any]]:
    contestants = [Way(name, case, hidden) for name in ways]
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        order = rng.permutation(len(case.samples))
        for way in contestants[:: 1 if epoch % 2 else -1]:
            if way.name != "alone" or epoch == 0:
                way.epoch(size, order)
    samples = len(case.samples) // size * size
    by = {way.name: way for way in contestants}
    for way in contestants:
        later = way.seconds[1:] or way.seconds
        ratios = (
            [own / other for own, other in zip(later, by["plans"].seconds[1:], strict=False)] if "plans" in by else []
        )
        yield {
            "case": case.name, "batch": size, "hidden": hidden, "way": way.name, "compilations": way.compilations,
            "samples a second": round(samples / statistics.median(later)),
            "by plans": [round(f(ratios), 3) for f in (statistics.median, min, max)] if ratios else None,
            "last loss": round(way.losses[-1], 4),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cases", nargs="+", default=["sst", "sick"], type=str.lower)
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["jit", "plans", "plan"], choices=WAYS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.loss, arguments.rounds = "root", None
    batches, hidden = arguments.batch, arguments.hidden
    arguments.hidden = (hidden,)
    settings = make_settings(arguments)
    rows = []
    for case in settings.cases.values():
        for size in batches:
            for row in contest(case, size, hidden, arguments.epochs, arguments.ways):
                rows.append(row)
                print(json.dumps(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
