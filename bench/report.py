"""Turn result files into `docs/benchmarks.md` and its plots.

    python bench/report.py [--results DIR] [--docs DIR] [--quick]

For each benchmark, the file of a full run is taken if there is one, else that of a normal run; with `--quick`, that of
a quick run, to see what the page looks like.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import results
from simulation import ACCELERATORS, KERNELS, simulate

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
Content = dict[str, Any]

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
    ("SICK", "training", ("DyNet agenda", "DyNet depth"), 4.0),
    ("SICK", "training", ("PyTorch by hand",), 3.0),
    ("SICK", "inference", ("DyNet agenda", "DyNet depth"), 5.0),
    ("SST", "training", ("DyNet agenda", "DyNet depth"), 2.0),
    ("SST", "inference", ("DyNet agenda", "DyNet depth"), 4.0),
    ("SST", "training", ("PyTorch by hand",), 1.0),
    ("SST", "inference", ("PyTorch by hand",), 1.0),
)
"""How many times as fast as the best of these we want to be at minibatches of 64 and 256."""

SICK_REFERENCE = (
    "Reference points for one cell a node: 804 steps if nodes with different numbers of children are different types, "
    "185 if they are not. A node is more than one step here: what it does for each child, the sums, and the rest."
)

OURS = "jitbatch"


# --- Text


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def digits(value: float) -> str:
    """Three significant digits, with commas.

    >>> digits(0.012345), digits(12345.6), digits(3.0)
    ('0.0123', '12,300', '3.00')
    """
    if value == 0 or not math.isfinite(value):
        return str(value)
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def milliseconds(timing: Any) -> str:
    """The median, and half the distance of the quartiles.

    >>> milliseconds({"median": 0.01, "low": 0.0099, "high": 0.0101})
    '10.0 ± 1 %'
    """
    if timing is None:
        return ""
    spread = (timing["high"] - timing["low"]) / 2 / timing["median"]
    return f"{digits(timing['median'] * 1e3)} ± {100 * spread:.0f} %"


def about(content: Content) -> str:
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = [row["load"] for row in content["rows"] if row.get("load") is not None]
    load = f"; load average {min(loads)} to {max(loads)}" if loads else ""
    return (
        f"Measured on {machine['processor']}, {machine['cores']} cores, {machine['system']}, Python "
        f"{machine['python']}, {versions}, commit {machine['commit']}; data: {content['settings']['data']}{load}."
    )


# --- Parts of the page


def tradeoff_part(content: Content, images: Path) -> str:
    parts = [
        "## The trade-off: analysis against batching",
        about(content),
        "Times are milliseconds for all minibatches of a row, medians of interleaved rounds with half the distance of"
        " the quartiles. *Cold* is planning samples whose structures were never seen (once), *warm* those seen "
        "before. *At least* is a lower bound on the number of steps of any order. A step of the dispatch executor is "
        "one compiled call; the fused executor runs all steps in one program. *Samples/s* counts warm planning and "
        "inference, one after the other. What `auto` chooses is in bold.",
    ]
    for row in content["rows"]:
        key = row["key"]
        if "skipped" in row:
            continue
        name = f"{key['workload']}, hidden {key['hidden']}, minibatch {key['batch']}"
        parts.append(f"### {name}\n\n{row['samples']:,} samples ({row['source']}) in {row['minibatches']} minibatches.")
        head = ["way", "nodes", "distinct", "steps", "at least", "mean width", "cold", "warm", "inference", "training"]
        lines = []
        for way, values in row["ways"].items():
            bold = "**" if way.startswith("auto, auto, auto") else ""
            seconds = values["warm"]["median"] + values["inference"]["median"]
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
                    milliseconds(values["inference"]),
                    milliseconds(values.get("training")),
                    digits(row["samples"] / seconds),
                ]
            )
        parts.append(table([*head, "samples/s"], lines))
        if "trees" in row:
            trees = row["trees"]
            parts.append(
                f"The trees have {trees['nodes']:,} nodes. The deepest of each minibatch have {trees['levels']:,} "
                f"levels together; with nodes of different numbers of children apart, {trees['levels by arity']:,}."
            )
            if (key["workload"], key["batch"], row["samples"]) == ("SICK", 256, 4500):
                parts.append(SICK_REFERENCE)
    parts += [tradeoff_plot(content, images), simulation_part(content, images)]
    return "\n\n".join(parts)


def tradeoff_plot(content: Content, images: Path) -> str:
    """Analysis and execution of each way; the lower left is best."""
    rows = [row for row in content["rows"] if "ways" in row]
    largest = {row["key"]["workload"]: row for row in sorted(rows, key=lambda row: row["key"]["batch"])}
    figure, axes = plt.subplots(1, len(largest), figsize=(4.2 * len(largest), 3.8), squeeze=False)
    for axis, (workload, row) in zip(axes[0], largest.items(), strict=True):
        for way, values in row["ways"].items():
            is_auto = way.startswith("auto, auto, auto")
            x, y = (values[part]["median"] * 1e3 for part in ("warm", "inference"))
            axis.scatter(x, y, marker="*" if is_auto else "o", s=160 if is_auto else 25, color=_color(way), zorder=2)
            axis.annotate("auto" if is_auto else way, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axis.set(xscale="log", yscale="log", xlabel="warm analysis, ms", ylabel="inference, ms")
        axis.set_title(f"{workload}, minibatch {row['key']['batch']}", fontsize=9)
    return _saved(figure, images / "tradeoff.svg", "Analysis time against execution time of each way of batching")


def _color(way: str) -> str:
    colors = {"op": "tab:red", "subgraph": "tab:blue", "graph": "tab:green", "auto": "tab:orange"}
    return colors[way.split(",")[0]]


def simulation_part(content: Content, images: Path) -> str:
    parts = [
        "### A simulation of accelerators",
        "**This is a simulation; nothing here was measured on an accelerator.** A step launches a few kernels and "
        "reads the weights of its type; operations and bytes of a minibatch are divided by rates that are never "
        "reached in full. Analysis is the warm time that was measured above. Milliseconds, inference; *overlapped* "
        "has plans made ahead.",
    ]
    rows = [row for row in content["rows"] if "ways" in row]
    lines = []
    for row in rows:
        if row["key"]["batch"] != max(one["key"]["batch"] for one in rows):
            continue
        for accelerator in ACCELERATORS:
            for way, values in row["ways"].items():
                granularity = way.split(",")[0]
                if granularity not in KERNELS or "loop" in values["plan"]:
                    continue
                one = simulate(accelerator, KERNELS[granularity], values, row["work"])
                times = [one.analysis, one.launching, one.computing, one.moving, one.total, one.overlapped]
                lines.append([row["key"]["workload"], accelerator.name, way, *(digits(1e3 * t) for t in times)])
    head = ["workload", "simulated accelerator", "way", "analysis", "launches", "operations", "memory", "in turn"]
    parts.append(table([*head, "overlapped"], lines))
    return "\n\n".join(parts)


def peers_part(content: Content, images: Path) -> str:
    parts = [
        "## Other frameworks",
        about(content),
        "The same weights and samples everywhere; the losses of the first minibatch, in training also after one step,"
        " were compared before timing (relative difference below 1e-4). Times include building graphs, planning and "
        "tables; not compilation, nor what a data loader would keep of a sample. Milliseconds a sample, medians of "
        "interleaved rounds with half the distance of the quartiles; in brackets how many times as fast jitbatch is. "
        "DyNet runs on one thread, all others on two.",
    ]
    rows = [row for row in content["rows"] if "peers" in row]
    groups = sorted({(row["key"]["workload"], row["key"]["hidden"]) for row in rows})
    for workload, hidden in groups:
        some = [row for row in rows if (row["key"]["workload"], row["key"]["hidden"]) == (workload, hidden)]
        head = ["", *(f"{row['key']['mode']}, minibatch {row['key']['batch']}" for row in some)]
        names = list(dict.fromkeys(name for row in some for name in row["peers"]))
        lines = [[name, *(_peer_cell(row["peers"], name) for row in some)] for name in names]
        parts += [f"### {workload}, hidden {hidden}", table(head, lines)]
    skipped = {
        (name, row["key"]["workload"], values.get("skipped") or "it failed: " + values["failed"].splitlines()[-1])
        for row in rows
        for name, values in row["peers"].items()
        if "median" not in values
    }
    if skipped:
        parts.append("Not run:\n\n" + "\n".join(f"- {name} on {what}: {why}" for name, what, why in sorted(skipped)))
    parts += [peers_plot(rows, images), paper_part(rows), goals_part(rows)]
    return "\n\n".join(parts)


def _peer_cell(peers: Content, name: str) -> str:
    mine, other = peers.get(OURS, {}), peers.get(name, {})
    if "median" not in other:
        return "-"
    ratio = f" ({digits(other['median'] / mine['median'])})" if "median" in mine and name != OURS else ""
    return milliseconds(other) + ratio


def peers_plot(rows: Sequence[Content], images: Path) -> str:
    names = list(dict.fromkeys(name for row in rows for name, one in row["peers"].items() if "median" in one))
    panels = sorted({(row["key"]["workload"], row["key"]["hidden"], row["key"]["mode"]) for row in rows})
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.6 * columns, 3.2 * lines), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for number, name in enumerate(names):
            points = [
                (row["key"]["batch"], 1 / row["peers"][name]["median"])
                for row in rows
                if tuple(row["key"][part] for part in ("workload", "hidden", "mode")) == panel
                and "median" in row["peers"].get(name, {})
            ]
            if points:
                style = {"linewidth": 2.5, "color": "black"} if name == OURS else {"color": f"C{number % 10}"}
                axis.plot(*zip(*sorted(points), strict=True), marker=".", label=name, **style)
        axis.set(xscale="log", yscale="log", xlabel="minibatch", ylabel="samples a second")
        axis.set_title(f"{panel[0]}, hidden {panel[1]}, {panel[2]}", fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.remove()
    handles = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=7)
    return _saved(figure, images / "peers.svg", "Samples a second of each framework against minibatch size")


def paper_part(rows: Sequence[Content]) -> str:
    """Ratios of the per-sample loop's time, where it is measured, by ours at the largest minibatch."""
    lines = []
    for kind, ratios in PAPER.items():
        for mode, ratio in ratios.items():
            sick = [row for row in rows if row["key"]["workload"] == "SICK" and row["key"]["mode"] == mode]
            ours = max(
                (
                    (row["key"]["batch"], row["peers"][OURS]["median"])
                    for row in sick
                    if "median" in row["peers"].get(OURS, {})
                ),
                default=None,
            )
            for name in BESIDE_PAPER[kind]:
                # The loop takes as long for a sample whatever the minibatch; it is measured for few samples.
                loop = [row["peers"][name]["median"] for row in sick if "median" in row["peers"].get(name, {})]
                if ours and loop:
                    lines.append([mode, f"{kind}: {name}", ratio, digits(min(loop) / ours[1]), ours[0]])
    if not lines:
        return ""
    head = ["SICK", "against", "the paper's ratio", "ours", "our minibatch"]
    return (
        "### The paper's own ratios\n\nBatched execution against the loop over samples, on the paper's workload.\n\n"
        + table(head, lines)
    )


def goals_part(rows: Sequence[Content]) -> str:
    lines = []
    for workload, mode, others, goal in GOALS:
        for row in rows:
            key, peers = row["key"], row["peers"]
            if (key["workload"], key["mode"]) != (workload, mode) or key["batch"] not in (64, 256):
                continue
            times = [peers[name]["median"] for name in others if "median" in peers.get(name, {})]
            if times and "median" in peers.get(OURS, {}):
                reached = min(times) / peers[OURS]["median"]
                lines.append([
                    f"{workload}, hidden {key['hidden']}, {mode}, minibatch {key['batch']}", others[0].split()[0], goal,
                    digits(reached), "yes" if reached >= goal else "no",
                ])  # fmt: skip
    if not lines:
        return ""
    return "### Goals\n\nTimes as fast, planning included.\n\n" + table(["", "against", "goal", "reached", ""], lines)


def growth_part(content: Content, images: Path) -> str:
    parts = [
        "## How costs grow",
        about(content),
        "One thing grows at a time. The slope is that of a line through the logarithms of the upper half of the "
        "sizes: with 1, twice the size takes twice the time.",
    ]
    rows = [row for row in content["rows"] if "skipped" not in row]
    names = list(dict.fromkeys(row["key"]["axis"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.2), squeeze=False)
    lines = []
    for axis, name in zip(axes[0], names, strict=True):
        some = sorted((row for row in rows if row["key"]["axis"] == name), key=lambda row: row["key"]["value"])
        sizes = [row["key"]["value"] for row in some]
        slopes = []
        for part in ("cold", "warm", "inference", "training"):
            times = [row[part] if part == "cold" else row[part]["median"] for row in some]
            axis.plot(sizes, [1e3 * t for t in times], marker=".", label=part)
            slopes.append(slope(sizes, times))
        lines.append([name, f"{sizes[0]} to {sizes[-1]}", *(f"{one:.2f}" for one in slopes)])
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="ms")
        axis.legend(fontsize=6)
    parts.append(table(["slope", "sizes", "planning, cold", "planning, warm", "inference", "training"], lines))
    parts.append(_saved(figure, images / "growth.svg", "Time against size"))
    return "\n\n".join(parts)


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Of a line through the logarithms of the upper half, where constant costs matter least.

    >>> round(slope([1, 2, 4, 8], [5.0, 6.0, 8.0, 16.0]), 2)
    1.0
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    if first < 0:
        return math.nan
    return float(np.polyfit(np.log(sizes[first:]), np.log(times[first:]), 1)[0])


def _saved(figure: Any, file: Path, caption: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    if not figure.get_layout_engine():
        figure.set_layout_engine("constrained")
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return f"![{caption}]({file.parent.name}/{file.name})"


PARTS = {"tradeoff": tradeoff_part, "peers": peers_part, "growth": growth_part}


def newest(folder: Path, benchmark: str, quick: bool) -> Content | None:
    for suffix in ("-quick",) if quick else ("-full", ""):
        file = folder / f"{benchmark}{suffix}.json"
        if file.exists():
            return results.read(file)
    return None


def page(folder: Path, docs: Path, quick: bool) -> str:
    parts = [
        "# Benchmarks",
        "Made by `python bench/report.py` from what `python bench/run.py --data DIR --full` measured, or `make bench` "
        "on data made on the fly; DIR holds `sick` and `sst`. How is told in the modules of `bench/`. "
        "What was measured by hand is in [the design](design.md#measurements).",
    ]
    for benchmark, part in PARTS.items():
        content = newest(folder, benchmark, quick)
        if content is not None and content["rows"]:
            parts.append(part(content, docs / "images"))
    return "\n\n".join(filter(None, parts)) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="the folder of result files")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where benchmarks.md and images go")
    parser.add_argument("--quick", action="store_true", help="of a quick run")
    options = parser.parse_args(arguments)
    options.docs.mkdir(parents=True, exist_ok=True)
    file = options.docs / "benchmarks.md"
    file.write_text(page(options.results, options.docs, options.quick), encoding="utf-8")
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
