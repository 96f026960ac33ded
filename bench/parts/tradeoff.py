"""The trade-off of analysis and batching, and its simulation on accelerators."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from simulation import ACCELERATORS, Accelerator, Simulated, kernels_of, simulate

from parts.text import Content, about, digits, failures, milliseconds, saved, table

AUTO = "auto, auto, auto"
COLORS = {"op": "tab:red", "subgraph": "tab:blue", "graph": "tab:green", "auto": "tab:orange"}
MARKERS = {"fused": "o", "dispatch": "s", "per_sample": "^", "auto": "*"}
SICK_REFERENCE = (
    "Reference points for one cell a node: 804 steps if nodes with different numbers of children are different types, "
    "185 if they are not. A node is more than one step here: what it does for each child, the sums, and the rest."
)


def part(content: Content, images: Path) -> str:
    rows = sorted((row for row in content["rows"] if "ways" in row), key=order)
    parts = [
        "## The trade-off: analysis against batching",
        about(content),
        "Small units (single operations) find the most that can run together, but there are many to analyse; large "
        "ones (whole graphs) are few, but hardly ever equal. A *way* is a granularity, a policy and an executor. "
        "*Nodes* are units before batching, *distinct* those left after equal ones are merged, *steps* what they are "
        "batched to, *at least* a lower bound on steps in any order. *Cold* is planning samples whose structures were "
        "never seen (once), *warm* of those seen before. A step of the dispatch executor is one compiled call; the "
        "fused executor runs all steps in one program. Times are milliseconds for all minibatches of a row, medians of "
        "interleaved rounds with half the distance of the quartiles; *samples/s* counts warm planning and inference, "
        "one after the other. What `auto` chooses is in bold.",
        plot([row for row in rows if "samples" not in row["key"]], images),
    ]
    for row in rows:
        parts += row_part(row)
    parts += [simulation_part(rows, images), failures(content["rows"])]
    return "\n\n".join(filter(None, parts))


def order(row: Content) -> tuple[Any, ...]:
    key = row["key"]
    return ["SICK", "SST", "tagger", "ListOps", "molecules"].index(key["workload"]), -key["batch"], "samples" in key


def row_part(row: Content) -> Iterator[str]:
    key = row["key"]
    whole = ", the whole training set" if "samples" in key else ""
    yield (
        f"### {key['workload']}, hidden {key['hidden']}, minibatch {key['batch']}{whole}\n\n"
        f"{row['samples']:,} samples ({row['source']}) in {row['minibatches']} "
        f"{'minibatch' if row['minibatches'] == 1 else 'minibatches'}."
    )
    head = ["way", "nodes", "distinct", "steps", "at least", "mean width", "cold", "warm", "inference", "training"]
    lines = []
    for way, values in row["ways"].items():
        bold = "**" if way == AUTO else ""
        seconds = values["warm"]["median"] + values["inference"]["median"]
        mark = r"\*" if "scaled" in values else ""
        lines.append(
            [
                f"{bold}{way}{bold}",
                f"{values['nodes']:,}",
                f"{values['distinct']:,}",
                f"{values['steps']:,}",
                f"{values['bound']:,}" if values["bound"] else "",
                digits(values["width"]),
                digits(values["cold"] * 1e3),
                milliseconds(values["warm"]),
                milliseconds(values["inference"]) + mark,
                milliseconds(values.get("training")),
                digits(row["samples"] / seconds) + mark,
            ]
        )
    yield table([*head, "samples/s"], lines)
    if any("scaled" in values for values in row["ways"].values()):
        yield r"\* A program for each structure: run on 16 samples, and scaled to all."
    if AUTO in row["ways"]:
        yield f"`auto` settled for `{row['ways'][AUTO]['plan'].splitlines()[0]}`."
    if "trees" in row:
        trees = row["trees"]
        yield (
            f"The trees have {trees['nodes']:,} nodes. The deepest of each minibatch have {trees['levels']:,} levels "
            f"together; with nodes of different numbers of children apart, {trees['levels by arity']:,}."
        )
        if (key["workload"], key["batch"], row["samples"]) == ("SICK", 256, 4500):
            yield SICK_REFERENCE


def plot(rows: Sequence[Content], images: Path) -> str:
    """Analysis and execution of each way; the lower left is best."""
    largest = {row["key"]["workload"]: row for row in sorted(rows, key=lambda row: row["key"]["batch"])}
    if not largest:
        return ""
    columns = min(2, len(largest))
    lines = -(-len(largest) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(max(4.8 * columns, 7.2), 3.8 * lines + 0.8), squeeze=False)
    for axis, (workload, row) in zip(axes.flat, largest.items(), strict=False):
        for way, values in row["ways"].items():
            granularity, policy, executor = way.split(", ")[:3]
            x, y = (values[one]["median"] * 1e3 for one in ("warm", "inference"))
            size = 200 if way == AUTO else 36
            face = "none" if "by arity" in way else COLORS[granularity]
            axis.scatter(
                x, y, marker=MARKERS[executor], s=size, facecolor=face, edgecolor=COLORS[granularity], zorder=2
            )
            if way != AUTO and executor != "per_sample":
                axis.annotate(policy[0], (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
        for total in 10.0 ** np.arange(-1, 5):  # lines of equal sums of both
            xs = np.geomspace(total / 1e4, total * 0.9999, 200)
            axis.plot(xs, total - xs, color="gray", alpha=0.25, linewidth=0.8, zorder=1)
        ys = [values["inference"]["median"] * 1e3 for values in row["ways"].values()]
        xs = [values["warm"]["median"] * 1e3 for values in row["ways"].values()]
        axis.set(xscale="log", yscale="log", xlabel="warm analysis, ms", ylabel="inference, ms")
        axis.set(xlim=(min(xs) / 2, max(xs) * 2), ylim=(min(ys) / 2, max(ys) * 2))
        axis.set_title(f"{workload}, {row['samples']:,} samples, minibatch {row['key']['batch']}", fontsize=9)
    for axis in list(axes.flat)[len(largest) :]:
        axis.remove()
    handles = [Line2D([], [], color=color, marker="o", linestyle="", label=name) for name, color in COLORS.items()]
    handles += [
        Line2D([], [], color="gray", marker=marker, linestyle="", label=name, markersize=12 if name == "auto" else 6)
        for name, marker in MARKERS.items()
    ]
    handles.append(
        Line2D([], [], markeredgecolor="gray", markerfacecolor="none", marker="s", linestyle="", label="by arity")
    )
    handles.append(Line2D([], [], color="none", label="d, a, l: depth, agenda, layers"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    return saved(
        figure, images / "tradeoff.png", "Analysis against execution time of each way; gray lines have equal sums"
    )


# --- The simulation


def simulated(row: Content, accelerator: Accelerator) -> dict[str, Simulated]:
    """Each way of a row, but for those that were not planned as batches."""
    return {
        way: simulate(accelerator, kernels_of(way, row), values, row["work"])
        for way, values in row["ways"].items()
        if "per_sample" not in way and "Plan(per_sample" not in values["plan"] and "by arity" not in way
    }


def simulation_table(rows: Sequence[Content], accelerators: Sequence[Accelerator]) -> str:
    lines = []
    for row in rows:
        for accelerator in accelerators:
            for way, one in simulated(row, accelerator).items():
                times = [one.analysis, one.launching, one.computing, one.moving, one.total, one.overlapped]
                name = f"{row['key']['workload']}, minibatch {row['key']['batch']}, {accelerator.name}"
                lines.append([name, way, *(digits(1e3 * t) for t in times)])
    head = ["simulated", "way", "analysis", "launches", "operations", "memory", "in turn", "overlapped"]
    return table(head, lines, texts=2)


def simulation_part(rows: Sequence[Content], images: Path) -> str:
    chosen = [row for row in rows if row["key"]["workload"] == "SICK" and "samples" not in row["key"]][:1] or rows[:1]
    return "\n\n".join(
        [
            "### A simulation of accelerators",
            "**This is a simulation; nothing here was measured on an accelerator.** An accelerator is three numbers: "
            "the time of a launch, the rate of products and the bandwidth of memory. A step launches a few kernels and "
            "reads the weights of its type; operations and bytes of a minibatch are divided by rates that are never "
            "reached in full. Analysis is the warm time that was measured above, on this machine. Milliseconds, "
            "inference; *overlapped* has plans made ahead. Other numbers: `python bench/simulation.py --launch 5e-6 "
            "--rate 2e13 --bandwidth 1e12`.",
            simulation_table(chosen, ACCELERATORS),
            simulation_plot(rows, images),
        ]
    )


def simulation_plot(rows: Sequence[Content], images: Path) -> str:
    """Samples a second against the time of a launch, for one way of each granularity."""
    largest = {
        row["key"]["workload"]: row
        for row in sorted(rows, key=lambda row: row["key"]["batch"])
        if "samples" not in row["key"]
    }
    figure, axes = plt.subplots(1, max(len(largest), 1), figsize=(3.4 * max(len(largest), 1), 3.4), squeeze=False)
    launches = np.geomspace(1e-6, 5e-5, 20)
    for axis, (workload, row) in zip(axes[0], largest.items(), strict=False):
        sweeps = [simulated(row, ACCELERATORS[1]._replace(launch=launch)) for launch in launches]
        for granularity in ("op", "subgraph", "graph"):
            ways = [way for way in sweeps[0] if way.startswith(granularity)]
            if ways:
                for style, kind in (("-", "overlapped"), (":", "total")):
                    best = [min(getattr(sweep[way], kind) for way in ways) for sweep in sweeps]
                    label = f"{granularity}, {'plans ahead' if kind == 'overlapped' else 'in turn'}"
                    speed = row["samples"] / np.array(best)
                    axis.plot(launches * 1e6, speed, style, color=COLORS[granularity], label=label)
        axis.set(xscale="log", yscale="log", xlabel="a launch, microseconds")
        axis.set_title(f"SIMULATION: {workload}, minibatch {row['key']['batch']}", fontsize=8)
    axes[0][0].set_ylabel("samples a second, simulated")
    axes[0][0].legend(fontsize=6)
    caption = f"Simulated speed against the time of a launch; rates of the accelerator with {ACCELERATORS[1].name}"
    return saved(figure, images / "simulation.png", caption)
