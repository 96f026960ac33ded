"""How costs grow."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from parts.text import Content, about, failures, saved, table


def part(content: Content, images: Path) -> str:
    parts = [
        "## How costs grow",
        about(content),
        "Small cells (hidden 64) on trees made for the purpose; one thing grows at a time, and where that is not the "
        "number of nodes, it stays as it is. The slope is that of a line through the logarithms of the upper half of "
        "the sizes: with 1, twice the size takes twice the time; with 0, size does not matter.",
    ]
    rows = [row for row in content["rows"] if "training" in row]
    names = list(dict.fromkeys(row["key"]["axis"] for row in rows))
    figure, axes = plt.subplots(1, max(len(names), 1), figsize=(3.2 * max(len(names), 1), 3.2), squeeze=False)
    lines = []
    for axis, name in zip(axes[0], names, strict=False):
        some = sorted((row for row in rows if row["key"]["axis"] == name), key=lambda row: row["key"]["value"])
        sizes = [row["key"]["value"] for row in some]
        slopes = []
        for what in ("cold", "warm", "inference", "training"):
            times = [row[what] if what == "cold" else row[what]["median"] for row in some]
            label = f"planning, {what}" if what in ("cold", "warm") else what
            axis.plot(sizes, [1e3 * t for t in times], marker=".", label=label)
            slopes.append(slope(sizes, times))
        lines.append([name, f"{sizes[0]} to {sizes[-1]}", *(f"{one:.2f}" for one in slopes)])
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="milliseconds a minibatch")
        axis.set_xticks(sizes, [str(size) for size in sizes], fontsize=7)
        axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    parts.append(table(["slope", "sizes", "planning, cold", "planning, warm", "inference", "training"], lines))
    parts += [saved(figure, images / "growth.png", "Time against size"), failures(content["rows"])]
    return "\n\n".join(filter(None, parts))


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Of a line through the logarithms of the upper half, where constant costs matter least.

    >>> round(slope([1, 2, 4, 8], [5.0, 6.0, 8.0, 16.0]), 2)
    1.0
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    if first < 0:
        return math.nan
    return float(np.polyfit(np.log(sizes[first:]), np.log(times[first:]), 1)[0])
