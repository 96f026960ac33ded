"""The drawings of a report as a matplotlib figure: the batch, the timeline, and one sample."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitbatch.inspect.page import colour

if TYPE_CHECKING:
    from jitbatch.inspect.report import NodeReport, Report

_FAINT = 0.62
"""The opacity of what runs before and after a loop."""


def plot(report: "Report") -> Any:
    """A figure of a report. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Report.plot needs matplotlib: pip install matplotlib") from error
    lanes = _lanes(report)
    figure = Figure(figsize=(11, 4.6 + 0.35 * len(lanes)), layout="constrained")
    ratios = [0.6 + 0.35 * len(lanes), 0.6, 3.2]
    batch, time, sample = figure.subplots(3, 1, gridspec_kw={"height_ratios": ratios})
    figure.suptitle(
        f"{report.function}: {report.samples} samples, {report.nodes} calls, {report.distinct} distinct, "
        f"{report.steps} steps of {report.mean_width:.1f}",
        parse_math=False,
    )
    _draw_batch(batch, report, lanes)
    _draw_time(time, report)
    _draw_sample(sample, report)
    for axes in (batch, time, sample):
        axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _lanes(report: "Report") -> list[tuple[int, int]]:
    """The parts of cells in the order in which they first run."""
    return list(dict.fromkeys((step.cell, step.part) for step in report.step_list))


def _look(report: "Report", cell: int, part: int) -> dict[str, Any]:
    faint = report.cells[cell].parts[part].name in ("hoist", "sink")
    return {"color": colour(cell), "alpha": _FAINT if faint else 1.0}


def _draw_batch(axes: Any, report: "Report", lanes: Sequence[tuple[int, int]]) -> None:
    total: dict[tuple[int, int, int], list[int]] = {}
    for step in report.step_list:
        box = total.setdefault((step.column, step.cell, step.part), [0, 0])
        box[0] += step.count
        box[1] += step.width
    most = np.log1p(max((width for _, width in total.values()), default=1))
    for (column, cell, part), (count, width) in total.items():
        base = len(lanes) - 1 - lanes.index((cell, part))
        tall = 0.85 * np.log1p(count) / most
        axes.bar(column, tall, 0.88, bottom=base, **_look(report, cell, part))
        axes.bar(column, 0.85 * np.log1p(width) / most, 0.88, bottom=base, fill=False, edgecolor=colour(cell), lw=0.7)
        if len(report.columns) <= 40 and tall > 0.25:
            axes.text(column, base + tall / 2, str(count), ha="center", va="center", color="white", fontsize=8)
    names = [_name(report, *lane) for lane in reversed(lanes)]
    axes.set_yticks(np.arange(len(lanes)) + 0.4, names, parse_math=False)
    axes.set_xlim(-0.6, len(report.columns) - 0.4)
    axes.set_xlabel("phases, and rounds of loops")
    axes.tick_params(left=False)


def _name(report: "Report", cell: int, part: int) -> str:
    own = report.cells[cell]
    return f"{own.name} · {own.parts[part].name}" if own.parts[part].name else own.name


def _draw_time(axes: Any, report: "Report") -> None:
    at = 0.0
    for step in report.step_list:
        axes.barh(0, step.seconds * 1e6, left=at, edgecolor="white", lw=0.4, **_look(report, step.cell, step.part))
        at += step.seconds * 1e6
    axes.set_yticks([])
    axes.set_xlabel(f"microseconds, {'measured' if report.measured else 'estimated'}")


def _draw_sample(axes: Any, report: "Report") -> None:
    x, y = place_nodes(report.sample_nodes)
    for number, node in enumerate(report.sample_nodes):
        for read in node.reads:
            axes.plot([x[number], x[read]], [y[number], y[read]], color="0.7", lw=1, zorder=1)
    for number, node in enumerate(report.sample_nodes):
        axes.scatter(x[number], y[number], s=170, color="white", zorder=2)
        axes.scatter(x[number], y[number], s=170, zorder=3, **_look(report, node.cell, node.part))
        axes.text(x[number], y[number], str(node.step), ha="center", va="center", color="white", fontsize=7, zorder=4)
    axes.set_title(f"sample {report.sample}; numbers are steps", fontsize=10)
    axes.set_axis_off()


def place_nodes(nodes: "Sequence[NodeReport]") -> tuple[list[float], list[int]]:
    """Places of the nodes of a graph, in which each comes after what it reads: results on top, the rest below them."""
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for read in node.reads:
            readers[read].append(number)
    y = [0] * len(nodes)
    for number in reversed(range(len(nodes))):
        y[number] = min((y[reader] - 1 for reader in readers[number]), default=0)
    x: dict[int, float] = {}
    free = 0
    for root in (number for number, own in enumerate(readers) if not own):
        pending = [(root, False)]
        while pending:
            number, is_done = pending.pop()
            if is_done:
                own = [x[read] for read in nodes[number].reads if y[read] == y[number] - 1] or [float(free)]
                x[number] = sum(own) / len(own)
                free += not nodes[number].reads
            elif number not in x:
                x[number] = float(free)
                pending += [(number, True), *((read, False) for read in reversed(nodes[number].reads) if read not in x)]
    for level in set(y):
        here = sorted((number for number in range(len(nodes)) if y[number] == level), key=lambda number: x[number])
        for left, right in itertools.pairwise(here):
            x[right] = max(x[right], x[left] + 0.9)
    return [x[number] for number in range(len(nodes))], y
