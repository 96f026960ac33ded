"""The picture of the README: training speed against minibatch size, ours and the peers'."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from parts.goals import OURS, timed
from parts.text import Content, saved

PANELS = ("SST", "SICK")
LINES = {
    "jitbatch": ("black", (OURS,)),
    "DyNet autobatching": ("#d1495b", ("DyNet agenda", "DyNet depth")),
    "PyTorch, levels by hand": ("#e8833a", ("PyTorch by hand",)),
    "JAX, levels by hand": ("#4e79a7", ("JAX by hand",)),
    "JAX, a program a tree": ("#8e6bb0", ("JAX per sample, jitted",)),
    "PyTorch, tree by tree": ("#7f6a5c", ("PyTorch per sample",)),
}
"""What is drawn: the label, the colour and the contestants, of which the fastest is taken."""


def draw(rows: Sequence[Content], images: Path) -> str:
    """Draws `speed.png`: each workload with the smallest hidden size that was measured."""
    rows = [row for row in rows if row["key"]["mode"] == "training"]
    panels = [workload for workload in PANELS if any(row["key"]["workload"] == workload for row in rows)]
    if not panels:
        return ""
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False)
    for axis, workload in zip(axes.flat, panels, strict=True):
        some = [row for row in rows if row["key"]["workload"] == workload]
        hidden = min(row["key"]["hidden"] for row in some)
        _draw_panel(axis, [row for row in some if row["key"]["hidden"] == hidden])
        axis.set_title(f"training a Tree-LSTM on {workload}, hidden {hidden}", fontsize=10)
    axes[0, 0].set_ylabel("samples a second")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=9, frameon=False)
    return saved(figure, images / "speed.png", "Samples a second against minibatch size, ours and the peers'")


def _draw_panel(axis: Axes, rows: Sequence[Content]) -> None:
    sizes = sorted({row["key"]["batch"] for row in rows})
    for label, (colour, names) in LINES.items():
        points = []
        for row in sorted(rows, key=lambda row: row["key"]["batch"]):
            speeds = [1 / row["peers"][name]["median"] for name in names if timed(row, name)]
            if speeds:
                points.append((row["key"]["batch"], max(speeds)))
        if points:
            width = 2.8 if names == (OURS,) else 1.5
            x, y = zip(*points, strict=True)
            axis.plot(x, y, label=label, color=colour, linewidth=width, marker="o", markersize=width + 2)
    axis.set(xscale="log", yscale="log", xlabel="minibatch")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
