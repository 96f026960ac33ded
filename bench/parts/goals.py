"""What the project aims at and what the paper reached, with ours beside it, and where we are behind."""

from collections.abc import Iterator, Sequence
from typing import Any

from parts.text import Content, digits, table

OURS = "jitbatch"
MODES = ("training", "inference")
DYNET = ("DyNet agenda", "DyNet depth")

PAPER = {
    "per sample, not compiled": {"training": 5.96, "inference": 6.25},
    "per sample, compiled": {"training": 3.01, "inference": 2.39},
}
"""Batched against per sample on SICK, from the paper on just-in-time dynamic batching in MXNet Gluon."""

BESIDE_PAPER = {
    "per sample, not compiled": ("PyTorch per sample", "JAX per sample"),
    "per sample, compiled": ("JAX per sample, jitted",),
}
"""Which of our contestants are of that kind."""

GOALS = (
    ("SICK", "training", DYNET, 4.0),
    ("SICK", "inference", DYNET, 5.0),
    ("SICK", "training", ("DyNet depth, words once",), None),
    ("SICK", "inference", ("DyNet depth, words once",), None),
    ("SICK", "training", ("PyTorch by hand",), 3.0),
    ("SICK", "inference", ("PyTorch by hand",), 1.0),
    ("SST", "training", DYNET, 2.0),
    ("SST", "inference", DYNET, 4.0),
    *((name, mode, ("PyTorch by hand",), 1.0) for name in ("SST", "tagger", "ListOps") for mode in MODES),
)
"""How many times as fast as the best of these we want to be, planning included; None: to be shown."""
GOAL_BATCHES, LARGEST_HIDDEN = (64, 256), 150


def timed(row: Content, name: str) -> bool:
    return "median" in row["peers"].get(name, {})


def part(rows: Sequence[Content]) -> str:
    """In short."""
    return "\n\n".join(filter(None, ["## In short", goals(rows), paper(rows), behind(rows)]))


def goals(rows: Sequence[Content]) -> str:
    lines = []
    for workload, mode, others, goal in GOALS:
        cells = [reached(rows, workload, mode, batch, others) for batch in GOAL_BATCHES]
        if any(cells):
            name = "DyNet" if others == DYNET else others[0]
            shown = [f"{digits(one)}{'' if one >= (goal or 0) else ' (missed)'}" if one else "" for one in cells]
            lines.append([f"{workload}, {mode}, against {name}", f"{goal:g}" if goal else "", *shown])
    if not lines:
        return ""
    return (
        "### The goals\n\nHow many times as fast as others jitbatch is, in samples a second with planning; of DyNet's "
        "two policies the faster one.\n\n"
        + table(["", "goal", *(f"minibatch {batch}" for batch in GOAL_BATCHES)], lines)
    )


def reached(rows: Sequence[Content], workload: str, mode: str, batch: int, others: Sequence[str]) -> float | None:
    for row in rows:
        key = row["key"]
        same = (key["workload"], key["mode"], key["batch"]) == (workload, mode, batch)
        times = [row["peers"][name]["median"] for name in others if timed(row, name)]
        if same and key["hidden"] <= LARGEST_HIDDEN and times and timed(row, OURS):
            return min(times) / row["peers"][OURS]["median"]
    return None


def paper(rows: Sequence[Content]) -> str:
    """Ratios of the per-sample loop's time by ours, at the largest minibatch."""
    lines = []
    for kind, ratios in PAPER.items():
        for mode, ratio in ratios.items():
            for name in BESIDE_PAPER[kind]:
                both = [
                    row
                    for row in rows
                    if (row["key"]["workload"], row["key"]["mode"]) == ("SICK", mode)
                    and timed(row, OURS)
                    and timed(row, name)
                ]
                if both:
                    row = max(both, key=lambda row: row["key"]["batch"])
                    mine = row["peers"][name]["median"] / row["peers"][OURS]["median"]
                    lines.append([f"{mode}, against {kind}", f"{ratio:g}", digits(mine), name, row["key"]["batch"]])
    if not lines:
        return ""
    return (
        "### The paper's ratios\n\nThe paper behind this project (just-in-time dynamic batching in MXNet Gluon) states "
        "how much faster its batched execution is than a loop over samples, on SICK with embedding 300 and hidden 150. "
        "The same workload here, each against a loop on this machine; theirs is of another machine and framework.\n\n"
        + table(["SICK", "the paper's", "ours", "the loop is", "our minibatch"], lines)
    )


def behind(rows: Sequence[Content]) -> str:
    """Where another one is faster."""
    lines = [f"- {line}" for line in sorted(losses(rows))]
    if not lines:
        return "### Where others are faster\n\nNowhere in these tables." if rows else ""
    return "### Where others are faster\n\nTimes as fast as jitbatch:\n\n" + "\n".join(lines)


def losses(rows: Sequence[Content]) -> Iterator[str]:
    found: dict[tuple[Any, ...], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["key"]["batch"]):
        key = row["key"]
        if not timed(row, OURS):
            continue
        mine = row["peers"][OURS]["median"]
        for name, other in row["peers"].items():
            if timed(row, name) and other["median"] < mine and not name.startswith(OURS):
                group = key["workload"], key["hidden"], key["mode"], name
                found.setdefault(group, []).append(f"{digits(mine / other['median'])} at minibatch {key['batch']}")
    for (workload, hidden, mode, name), where in found.items():
        yield f"{workload}, hidden {hidden}, {mode}: {name} {', '.join(where)}"
