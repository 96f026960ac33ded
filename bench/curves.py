"""Compares runs of `jitbatch train`, two by two: every loss, the metrics of every epoch, and the test figures.

    jitbatch train sick --data DIR --limit 128 --batch-size 16 --epochs 3 --run batched
    jitbatch train sick --data DIR --limit 128 --batch-size 16 --epochs 3 --run looped --executor loop
    python bench/curves.py batched looped [batched2 looped2 ...] [--picture FILE]

Prints the largest relative differences. Fails where the settings of two runs differ in more than the executor, where
one has more steps than the other, or where a loss differs by more than `--tolerance`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Run(NamedTuple):
    """What a run computed, without how long it took."""

    settings: dict[str, Any]
    losses: list[float]  # of each step
    dev: list[dict[str, float]]  # of each epoch
    test: dict[str, float]


def read_run(directory: Path) -> Run:
    settings = json.loads((directory / "settings.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    of_kind = {kind: [one for one in records if one["kind"] == kind] for kind in ("step", "epoch", "final")}
    if not of_kind["final"]:
        raise SystemExit(f"the run in {directory} has not ended")
    losses = [one["loss"] for one in of_kind["step"]]
    return Run(settings, losses, [one["dev"] for one in of_kind["epoch"]], of_kind["final"][-1]["test"])


def differences(one: Run, other: Run) -> dict[str, float]:
    """The largest relative difference of a step's loss, of an epoch's metrics and of the test figures."""
    names = [name for name in one.settings if one.settings[name] != other.settings[name] and name != "executor"]
    if names:
        raise SystemExit(f"the runs differ in {', '.join(names)}: nothing can be compared")
    if len(one.losses) != len(other.losses):
        raise SystemExit(f"one run has {len(one.losses)} steps, the other {len(other.losses)}")
    dev = [(a[name], b[name]) for a, b in zip(one.dev, other.dev, strict=True) for name in a]
    return {
        "loss of a step": largest(list(zip(one.losses, other.losses, strict=True))),
        "dev metric of an epoch": largest(dev),
        "test metric": largest([(one.test[name], other.test[name]) for name in one.test]),
    }


def largest(pairs: list[tuple[float, float]]) -> float:
    """
    >>> largest([(1.0, 1.0), (2.0, 1.0), (0.0, 0.0)])
    0.5
    """
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)


def draw(pairs: list[tuple[Run, Run]], path: Path) -> None:
    """A panel for each pair: one run as a wide line, the other as dots on it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(pairs), 3), layout="constrained")
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    for panel, (one, other) in zip(panels, pairs, strict=True):
        steps = range(1, len(one.losses) + 1)
        panel.plot(steps, one.losses, linewidth=4, alpha=0.35, label=one.settings["executor"])
        panel.plot(steps, other.losses, "k.", markersize=4, label=other.settings["executor"])
        panel.set(title=one.settings["task"].upper(), xlabel="step", ylabel="training loss of the minibatch")
        panel.legend()
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs, two by two")
    parser.add_argument("--picture", type=Path, help="draw the losses of each pair into this file")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="for losses, relative (default: 1e-3)")
    options = parser.parse_args(argv)
    if len(options.runs) % 2:
        parser.error("runs are compared two by two")
    runs = [read_run(directory) for directory in options.runs]
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    found = [differences(*pair) for pair in pairs]
    for (one, other), each in zip(pairs, found, strict=True):
        figures = ", ".join(f"{name} {value:.6f}" for name, value in one.test.items())
        print(f"{one.settings['task']}, {one.settings['executor']} and {other.settings['executor']}:", end=" ")
        print(f"{len(one.losses)} steps, losses from {one.losses[0]:.4f} to {one.losses[-1]:.4f}; test {figures}")
        for name, value in each.items():
            print(f"  largest relative difference, {name}: {value:.1e}")
    if options.picture:
        draw(pairs, options.picture)
    return int(any(each["loss of a step"] > options.tolerance for each in found))


if __name__ == "__main__":
    sys.exit(main())
