"""What `fused.py`, `planning.py` and `auto.py` measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parts.text import Content, about, digits, failures, table

BY_HAND = ("by hand, scans", "by hand, unrolled")


def part(content: Content, images: Path) -> str:
    rows = [one | {"of": row["key"]["figure"]} for row in content["rows"] for one in row.get("rows", [])]
    commands = {row["key"]["figure"]: row["command"] for row in content["rows"] if "command" in row}
    figures = [
        (2, "Against JAX batched by hand", by_hand),
        (3, "Against a jitted program for each tree", ratios),
        (4, "Against the dispatch executor", ratios),
        (5, "Against nothing but the matrix products", ratios),
        (6, "Large minibatches", large),
        (1, "Compilations", compilations),
    ]
    parts = [
        "## The executor and planning by themselves",
        about(content),
        "Execution only, plans and tables made before; a ratio is the other's time by ours: above one, jitbatch is "
        "faster. SST has its loss at the roots here. Losses and gradients were compared before timing.",
    ]
    for number, title, show in figures:
        some = [row for row in rows if row.get("figure") == number]
        if some:
            names = " and ".join(
                f"`python bench/{commands[name]}`" for name in dict.fromkeys(row["of"] for row in some)
            )
            parts += [f"### {title}\n\n{names}", show(some)]
    parts += [planning([row for row in rows if "case" in row]), auto([row for row in rows if "what" in row])]
    return "\n\n".join(filter(None, [*parts, failures(content["rows"])]))


def by_hand(rows: Sequence[Content]) -> str:
    lines = [
        [f"{row['data']}, hidden {row['hidden']}, {row['mode']}", row["batch"], digits(row["ms"]["fused"])]
        + [f"{row['ratio'][name]:.2f}" for name in BY_HAND]
        for row in rows
    ]
    return table(["", "minibatch", "ours, ms a minibatch", "levels in scans", "unrolled"], lines)


def ratios(rows: Sequence[Content]) -> str:
    lines = []
    for row in rows:
        name = f"{row['data']}, hidden {row['hidden']}, {row['mode']}"
        ((other, ratio),) = row["ratio"].items()
        lines.append([name, row["batch"], digits(row["ms"]["fused"]), digits(row["ms"][other]), f"{ratio:.2f}"])
    return table(["", "minibatch", "ours, ms a minibatch", "the other", "ratio"], lines)


def large(rows: Sequence[Content]) -> str:
    lines = [
        [f"{row['data']}, hidden {row['hidden']}, {row['mode']}, {name}", one]
        for row in rows
        for name, one in row["us a node"].items()
    ]
    return table(["", "microseconds a node"], lines)


def compilations(rows: Sequence[Content]) -> str:
    lines = [
        [f"epoch {row['epoch']}", row["compilations"], ", ".join(map(str, row["seconds of each"])), row["seconds"]]
        for row in rows
    ]
    title = f"A train step on {rows[0]['trees']:,} trees, minibatch {rows[0]['batch']}, shuffled in each epoch."
    return title + "\n\n" + table(["", "compilations", "seconds of each", "seconds of the epoch"], lines)


def planning(rows: Sequence[Any]) -> str:
    if not rows:
        return ""
    names = [name for name in rows[0] if name not in ("case", "minibatch", "apart", "of")]
    apart = {True: ", XLA on one core, planning on the others"}
    head = ["", *(f"{row['case'].upper()}, minibatch {row['minibatch']}{apart.get(row['apart'], '')}" for row in rows)]
    lines = [[name, *(digits(row[name]) for row in rows)] for name in names]
    return (
        "### Planning\n\n`python bench/planning.py`. *Cold*: structures never seen; *warm*: seen before; *share*: warm "
        "planning by a train step; *cold epoch*: an epoch with `f.plans` over structures never seen, by the next one "
        "over the same; *epoch ahead*: an epoch with `f.plans(..., prefetch=2)` by executing plans made before; *in "
        "turn*: the same without a thread.\n\n" + table(head, lines)
    )


def auto(rows: Sequence[Any]) -> str:
    if not rows:
        return ""
    lines = [
        [
            f"{row['workload']}, {row['what']}",
            digits(row["auto"]["median"] * 1e3),
            digits(row["loop"]["median"] * 1e3),
            f"{row['auto']['median'] / row['loop']['median']:.2f}",
            "stays with batches" if row["calls to settle"] is None else f"{row['calls to settle']:,}",
        ]
        for row in rows
    ]
    head = ["", "auto, ms", "loop, ms", "auto by loop", "calls until it settles"]
    return (
        "### Where batching cannot help\n\n`python bench/auto.py`: what `auto` settles for against one jitted call a "
        'sample (`executor="per_sample"`). *Batch* is a call on samples, *step* a plan made and run in a jitted '
        "function.\n\n" + table(head, lines)
    )
