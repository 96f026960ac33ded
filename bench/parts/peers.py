"""Other frameworks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from parts.goals import OURS, timed
from parts.text import Content, about, digits, failures, saved, spread, table

MARK = r"\*"  # an asterisk of its own

WORKLOADS = {
    "SICK": "Pairs of dependency trees; child-sum Tree-LSTM, embedding 300, and a similarity head",
    "SST": "Parse trees of sentences; binary Tree-LSTM, embedding 300, a loss at every node",
    "tagger": "Sentences; BiLSTM over words and their characters, a loss for each word; made from a seed",
    "ListOps": "Nested expressions; an LSTM reads each operator's arguments; made from a seed",
    "molecules": "Message passing along bonds, sums over atoms and pairs; random molecules of 2 to 14 atoms",
}
PEERS = {
    "jitbatch": "`f.plans`, and one jitted step, which runs while the next plan is made; structures were seen before",
    "jitbatch, planned in a thread": "the same with `prefetch=2`: plans are made ahead in a thread",
    "DyNet agenda": "from Python, `--dynet-autobatch 1`",
    "DyNet depth": "from Python, `--dynet-autobatch 2`",
    "DyNet depth, words once": "trees project each distinct word of a minibatch once",
    "PyTorch by hand": "level by level, each distinct word projected once; the tagger with packed sequences; "
    "molecules as one graph with `index_add`",
    "pytorch-tree-lstm": "the package of this name",
    "DGL": "message passing level by level, as in DGL's own Tree-LSTM",
    "JAX by hand": "level by level in scans over padded tables, which are made for each minibatch; one program for all",
    "JAX padded vmap": "`vmap` of a scan over a sample's nodes or words, as many as the largest has",
    "PyTorch per sample": "eager, one sample after the other",
    "JAX per sample, jitted": "a program for each structure, compiled before",
    "JAX per sample": "nothing compiled",
}


def part(content: Content, images: Path) -> str:
    rows = [row for row in content["rows"] if "peers" in row]
    parts = ["## Other frameworks", about(content), how(rows)]
    rows.sort(key=lambda row: (list(WORKLOADS).index(row["key"]["workload"]), row["key"]["hidden"]))
    for workload, hidden in dict.fromkeys((row["key"]["workload"], row["key"]["hidden"]) for row in rows):
        some = [row for row in rows if (row["key"]["workload"], row["key"]["hidden"]) == (workload, hidden)]
        parts.append(f"### {workload}, hidden {hidden}\n\n{WORKLOADS[workload]}. Samples a second:")
        parts += [one_table([row for row in some if row["key"]["mode"] == mode]) for mode in ("inference", "training")]
    parts += [plot(rows, images), not_run(rows), failures(content["rows"])]
    return "\n\n".join(filter(None, parts))


def how(rows: Sequence[Content]) -> str:
    lines = []
    names = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    for name in names:
        known = next((row["peers"][name] for row in rows if timed(row, name)), {})
        versions = ", ".join(f"{package} {version}" for package, version in known.get("versions", {}).items())
        lines.append([name, PEERS.get(name, ""), known.get("threads", ""), versions])
    return (
        "Every contestant is a process of its own with the same weights and the same samples. Before anything is "
        "timed, the loss of the first minibatch is compared (to 1e-4), and for training also the loss after one "
        "update. A round is some minibatches, one after the other, with all that is to be done for each: building "
        "graphs, planning, tables, and in training the update. Compilation is not counted, nor what a data loader "
        "would keep of a sample. All processes keep the memory that they free (as `jitbatch.keep_memory` does, by "
        "variables of the environment): by default it goes back to the system after every large step, which slows "
        "some of them. Contestants take turns; the numbers are medians with half the distance of the "
        "quartiles, and in brackets how many times as fast jitbatch is.\n\n"
        + table(["contestant", "what it is", "threads", "versions"], lines, texts=4)
    )


def one_table(rows: Sequence[Content]) -> str:
    rows = sorted(rows, key=lambda row: row["key"]["batch"])
    names = [
        name for name in dict.fromkeys(n for row in rows for n in row["peers"]) if any(timed(r, name) for r in rows)
    ]
    notes: list[str] = []
    lines = []
    for name in names:
        shown = f"**{name}**" if name == OURS else name
        lines.append([shown, *(cell(row, name, notes) for row in rows)])
    if not lines:
        return ""
    head = [rows[0]["key"]["mode"], *(f"minibatch {row['key']['batch']}" for row in rows)]
    marked = "\n\n".join(f"{MARK * number} {note}." for number, note in enumerate(notes, 1))
    return table(head, lines) + (f"\n\n{marked}" if marked else "")


def cell(row: Content, name: str, notes: list[str]) -> str:
    """Samples a second, a mark if there were fewer samples than in the minibatch, and our speed by it."""
    if not timed(row, name):
        return ""
    one = row["peers"][name]
    note = limits(one, row["key"]["batch"])
    if note and note not in notes:
        notes.append(note)
    mark = MARK * (notes.index(note) + 1) if note else ""
    ratio = f" ({digits(one['median'] / row['peers'][OURS]['median'])})" if timed(row, OURS) and name != OURS else ""
    return digits(1 / one["median"]) + spread(one) + mark + ratio


def limits(one: Content, batch: int) -> str:
    if one.get("batch", batch) < batch:
        return f"Measured with minibatches of {one['batch']}"
    if one.get("distinct", batch) < min(batch, one.get("batch", batch)):
        return f"The same {one['distinct']} samples again and again, as many as are compiled"
    return ""


def not_run(rows: Sequence[Content]) -> str:
    reasons: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for name, values in row["peers"].items():
            if "median" not in values:
                why = values.get("skipped") or "it failed: " + values["failed"].strip().splitlines()[-1]
                reasons.setdefault((name, why), set()).add(row["key"]["workload"])
    lines = [f"- {name} on {', '.join(sorted(where))}: {why}" for (name, why), where in sorted(reasons.items())]
    return "Not run:\n\n" + "\n".join(lines) if lines else ""


def plot(rows: Sequence[Content], images: Path) -> str:
    """Speed against minibatch size. The slowest by far would leave no room for the others."""
    names = [name for name in PEERS if name != "JAX per sample" and any(timed(row, name) for row in rows)]
    panels = list(dict.fromkeys(tuple(row["key"][one] for one in ("workload", "hidden", "mode")) for row in rows))
    columns = 2
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(9, 3.0 * lines + 0.8), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        some = [row for row in rows if tuple(row["key"][one] for one in ("workload", "hidden", "mode")) == panel]
        sizes = sorted({row["key"]["batch"] for row in some})
        for number, name in enumerate(names):
            points = sorted((row["key"]["batch"], 1 / row["peers"][name]["median"]) for row in some if timed(row, name))
            if points:
                axis.plot(*zip(*points, strict=True), label=name, **style(name, number))
        axis.set(xscale="log", yscale="log", xlabel="minibatch", ylabel="samples a second")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set_title(f"{panel[0]}, hidden {panel[1]}, {panel[2]}", fontsize=9)
    for axis in list(axes.flat)[len(panels) :]:
        axis.remove()
    handles = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    return saved(
        figure, images / "peers.png", "Samples a second against minibatch size, of all but the slowest contestant"
    )


def style(name: str, number: int) -> dict[str, Any]:
    if name == OURS:
        return {"color": "black", "linewidth": 2.5, "marker": "o", "zorder": 3}
    if name.startswith(OURS):
        return {"color": "black", "linestyle": ":", "marker": "."}
    dashed = {"linestyle": "--"} if "per sample" in name else {}
    return {"color": f"C{number % 10}", "marker": "."} | dashed
