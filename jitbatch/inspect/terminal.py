"""A report as a table for a terminal: plain text, at most 120 columns."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitbatch.ir.describe import MOST, largest
from jitbatch.util.readable import readable_count, readable_seconds, short_paths

if TYPE_CHECKING:
    from jitbatch.inspect.report import CellReport, PartReport, Report

WIDTH = 120
NAME, WHERE = 22, 22
HEADINGS = (
    "cell", "where", "calls", "distinct", "steps", "width", "min", "pad", "hoist/core/sink", "flops", "time", "compile",
)  # fmt: skip
TYPES = 12
"""The number of types whose differences from other types of their function are shown."""


def as_text(report: "Report") -> str:
    """Returns the report as text."""
    return "\n".join([*_head(report), "", *_table(report), *_types(report), "", *_totals(report), *_advice(report)])


def _head(report: "Report") -> list[str]:
    return [
        f"{report.function} ({report.where})",
        f"{report.samples} samples: {readable_count(report.nodes)} calls, {readable_count(report.distinct)} distinct, "
        f"in {report.steps} steps of {report.mean_width:.1f} calls on average, {report.launches} launches; "
        f"{100 * report.padding:.0f}% padding",
    ]


def rows_of(report: "Report", most: int | None = None) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table: a row for each cell and, for a split cell, a row for each part.

    Args:
        report: the report.
        most: the number of cells to show, the first in the report; None for all.
    """
    places = short_paths(cell.where for cell in report.cells)
    for cell in report.cells[:most]:
        calls = "?" if cell.calls is None else readable_count(cell.calls)
        if len(cell.parts) == 1:
            yield (
                cell.name,
                places[cell.where],
                calls,
                *_figures(cell.parts[0]),
                equations(cell),
                *_cost(cell.parts[0]),
            )
            continue
        yield (
            cell.name,
            places[cell.where],
            calls,
            "",
            "",
            "",
            "",
            "",
            equations(cell),
            "",
            f"{100 * cell.share:.0f}%",
            readable_seconds(cell.compile),
        )
        for part in cell.parts:
            yield (f"  {part.name}", "", "", *_figures(part), str(part.equations), *_cost(part))


def further_cells(report: "Report", most: int) -> str:
    """Returns a line about the cells beyond the first `most`, or "" if there are none."""
    left_out = report.cells[most:]
    share = sum(cell.share for cell in left_out)
    return f"... and {len(left_out)} more, with {100 * share:.0f}% of the time" if left_out else ""


def equations(cell: "CellReport") -> str:
    return "/".join(str(cell.equations(name)) for name in ("hoist", "core", "sink"))


def _figures(part: "PartReport") -> tuple[str, ...]:
    return (
        readable_count(part.distinct),
        str(part.steps),
        f"{part.mean_width:.1f}",
        str(part.smallest_width),
        f"{100 * part.padding:.0f}%",
    )


def _cost(part: "PartReport") -> tuple[str, str, str]:
    return readable_count(part.flops), f"{100 * part.share:.0f}%", readable_seconds(part.compile)


def _table(report: "Report") -> list[str]:
    rows = [HEADINGS, *rows_of(report, MOST)]
    rows = [(_cut(row[0], NAME), _cut(row[1], WHERE, end=True), *row[2:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:], *filter(None, [further_cells(report, MOST)])]


def _types(report: "Report") -> list[str]:
    """Returns lines with the differences between types of one function."""
    lines = [(cell.calls or 0, f"{cell.name}: {cell.differs}") for cell in report.cells[:MOST] if cell.differs]
    return ["", *largest(lines, TYPES)] if lines else []


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for place, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(width) if place < 2 else text.rjust(width)


def _cut(text: str, width: int, end: bool = False) -> str:
    if len(text) <= width:
        return text
    return f"...{text[3 - width :]}" if end else f"{text[: width - 3]}..."


def facts(report: "Report") -> Iterator[tuple[str, str]]:
    """Yields the totals, each as a name and a text."""
    before = f"{readable_count(report.nodes)} calls"
    if report.operations is not None:
        before += f" of {readable_count(report.operations)} operations"
    yield (
        "launches",
        (
            f"{before} one by one; {report.launches} batched, {report.nodes / max(report.launches, 1):.1f} times "
            f"fewer; no schedule needs fewer than {report.lower_bound}"
        ),
    )
    times = report.times
    new = "" if times.new_structures is None else f" ({times.new_structures} new structures)"
    yield (
        "time",
        (
            f"analysis {readable_seconds(times.analysis)}{new}, compilation {readable_seconds(times.compile)}, "
            f"run {readable_seconds(times.run)}"
        ),
    )
    how = "measured, each alone" if report.measured else "estimated from operations and steps"
    compiled = "measured, each alone" if report.measured else "estimated from equations"
    yield "time of cells", f"{how}; their compilation, by which they are sorted, {compiled}"
    if report.memory is not None:
        yield "memory", str(report.memory)
    yield (
        "caches",
        "; ".join(
            f"{name} {info.hits} hits, {info.misses} misses"
            for name, info in report.caches.items()
            if info.hits + info.misses
        ),
    )
    yield "granularity", report.granularity
    yield "policy", report.policy
    yield "executor", f"{report.executor}: {report.reason}"


def _totals(report: "Report") -> list[str]:
    lines = []
    for name, text in facts(report):
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"{name:<14}", subsequent_indent=" " * 14)
    return lines


def _advice(report: "Report") -> list[str]:
    if not report.advice:
        return []
    lines = ["", "advice"]
    for advice in report.advice:
        lines += textwrap.wrap(
            str(advice),
            WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
