"""A report as a table for a terminal: plain text, at most 120 columns."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitbatch.ir.describe import MOST
from jitbatch.util.readable import readable_count, readable_place, readable_seconds, short_paths

if TYPE_CHECKING:
    from jitbatch.inspect.report import Advice, CellReport, PartReport, Report

WIDTH = 120
NAME, WHERE = 22, 22
HEADINGS = (
    "cell", "where", "calls", "distinct", "steps", "width", "min", "pad", "hoist/core/sink", "flops", "time", "compile",
)  # fmt: skip
TYPES = 6
"""The number of types of one function that are shown."""


def as_text(report: "Report") -> str:
    """Returns the report as text: the verdict and the advice, then the numbers behind them."""
    table = [*_table(report), *_types(report)]
    parts = [*_head(report), *_advice(report), "", *table, *_notes(report), "", *_totals(report)]
    return "\n".join(parts)


def _head(report: "Report") -> list[str]:
    return [
        f"{report.function} ({readable_place(report.where)})",
        *textwrap.wrap(f"{report.samples} samples. {report.verdict}", WIDTH),
    ]


def rows_of(report: "Report", cells: Sequence["CellReport"] | None = None) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table: a row for each cell and, for a split cell, a row for each part.

    Args:
        report: the report.
        cells: the cells to show; None for all.
    """
    places = short_paths(cell.where for cell in report.cells)
    for cell in report.cells if cells is None else cells:
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


def shown_cells(report: "Report") -> list["CellReport"]:
    """Returns the cells of a short table: at most `MOST`, and at most `TYPES` of one function."""
    met: Counter[tuple[str, str]] = Counter()
    shown = []
    for cell in report.cells:
        met[cell.function, cell.where] += 1
        if met[cell.function, cell.where] <= TYPES:
            shown.append(cell)
    return shown[:MOST]


def further_cells(report: "Report", shown: Sequence["CellReport"]) -> str:
    """Returns a line about the cells that are not shown, or "" if there are none."""
    left_out = [cell for cell in report.cells if cell not in shown]
    if not left_out:
        return ""
    functions = {cell.function for cell in left_out}
    of = f" of {functions.pop()}" if len(functions) == 1 else ""
    share, steps = sum(cell.share for cell in left_out), sum(cell.steps for cell in left_out)
    return f"... and {len(left_out)} more{of}, with {steps} steps and {100 * share:.0f}% of the time"


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
    shown = shown_cells(report)
    rows = [HEADINGS, *rows_of(report, shown)]
    rows = [(_cut_name(row[0]), _cut(row[1], WHERE, end=True), *row[2:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:], *filter(None, [further_cells(report, shown)])]


def _types(report: "Report") -> list[str]:
    """Returns lines with the differences between types of one function."""
    lines = [f"{cell.name}: {cell.differs}" for cell in shown_cells(report) if cell.differs]
    return ["", "types of one function", *(f"  {line}" for line in lines)] if lines else []


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for column, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(width) if column < 2 else text.rjust(width)


def _cut(text: str, width: int, end: bool = False) -> str:
    if len(text) <= width:
        return text
    return f"...{text[3 - width :]}" if end else f"{text[: width - 3]}..."


def _cut_name(name: str) -> str:
    """Returns a name that fits its column, with the number that tells the types of one function apart."""
    function, mark, suffix = name.partition(" #")
    return _cut(function, NAME - len(mark + suffix)) + mark + suffix


def facts(report: "Report") -> Iterator[tuple[str, str]]:
    """Yields the totals, each as a name and a text."""
    before = f"{readable_count(report.calls)} calls"
    if report.operations is not None:
        before += f" of {readable_count(report.operations)} operations"
    split = (
        f", {readable_count(report.nodes)} nodes with the parts of split cells" if report.nodes > report.calls else ""
    )
    launches = ""
    if report.launches > report.steps:
        launches = f", in {report.launches} launches (a wide step runs in several)"
    yield (
        "steps",
        (
            f"{before} one by one{split}; {readable_count(report.distinct)} of them differ and run in {report.steps} "
            f"steps{launches}; no schedule of these types needs fewer than {report.lower_bound} steps"
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
    return ["", "advice", *_listed(report.advice)] if report.advice else ["", "advice: nothing to do"]


def _notes(report: "Report") -> list[str]:
    return ["", "notes (nothing to do)", *_listed(report.notes)] if report.notes else []


def _listed(some: Sequence["Advice"]) -> list[str]:
    lines = []
    for advice in some:
        lines += textwrap.wrap(
            str(advice),
            WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if advice.code:
            lines.append(f"      {_cut(advice.code, WIDTH - 6)}")
    return lines
