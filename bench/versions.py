"""A step of two checkouts of jitbatch, in turns: whether a change made it slower.

    python bench/versions.py OLD [NEW] [--data DIR] [--cases SST SICK] [--batches 16 64 256]

OLD and NEW are checkouts; NEW is this one if it is left out. Each runs in a process of its own, with its own native
core. A ratio is the old time by the new one: above one, the new checkout is faster. The losses of both are compared.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent


def worker() -> None:
    """Reads cases, one a line, prepares them, and runs a round of each when told."""
    sys.path.insert(0, str(HERE))
    import jax
    import workloads

    steps: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name = command["name"]
        if name not in steps:
            data = Path(command["data"]) if command["data"] else None
            work = workloads.make_workload(command["case"], data, 4096, command["hidden"])
            plan = work.model.plan(work.params, work.samples[: command["batch"]])
            loss = lambda params, plan, model=work.model: model.batch(params, plan).mean()  # noqa: E731
            run = jax.jit(jax.value_and_grad(loss) if command["train"] else loss)
            steps[name] = lambda run=run, work=work, plan=plan: jax.block_until_ready(run(work.params, plan))
            steps[name]()
        begin = time.perf_counter()
        made = [steps[name]() for _ in range(command["times"])]
        seconds = (time.perf_counter() - begin) / command["times"]
        value = float(jax.tree.leaves(made[-1])[0])
        print(json.dumps([seconds, value]), flush=True)


class Checkout:
    """A process that runs the code of a checkout."""

    def __init__(self, folder: Path):
        command = [str(folder / ".venv" / "bin" / "python"), str(Path(__file__).resolve()), "--worker"]
        if not Path(command[0]).exists():
            command[0] = sys.executable
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip

    def run(self, case: dict[str, Any], times: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**case, "times": times}) + "\n")
        self._process.stdin.flush()
        seconds, value = json.loads(self._process.stdout.readline())
        return seconds, value

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=HERE.parent)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cases", nargs="+", default=["SST", "SICK"])
    parser.add_argument("--batches", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    both = [Checkout(options.old.resolve()), Checkout(options.new.resolve())]
    try:
        for name in options.cases:
            for batch in options.batches:
                for train in (False, True):
                    label = f"{name}, minibatch {batch}, {'training' if train else 'inference'}"
                    case = {"name": label, "case": name, "batch": batch, "train": train, "hidden": options.hidden}
                    compare({**case, "data": options.data and str(options.data.resolve())}, both, options.rounds)
    finally:
        for one in both:
            one.close()


def compare(case: dict[str, Any], both: list[Checkout], rounds: int) -> None:
    first = [one.run(case, 1) for one in both]
    if abs(first[0][1] - first[1][1]) > 1e-3 * abs(first[0][1]):
        raise SystemExit(f"{case['name']}: the losses differ, {first[0][1]} and {first[1][1]}")
    times = max(1, min(20, int(0.1 / max(seconds for seconds, _ in first))))
    turns = [[one.run(case, times)[0] for one in both] for _ in range(rounds)]
    ratio = median(old / new for old, new in turns)
    old, new = (1e3 * median(column) for column in zip(*turns, strict=True))
    print(f"{case['name']}: {old:.2f} ms and {new:.2f} ms, ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    worker() if "--worker" in sys.argv else main()
