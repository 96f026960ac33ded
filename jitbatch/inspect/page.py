"""A report as HTML: a table for notebooks, and a separate page with drawings."""

import base64
import dataclasses
import hashlib
import json
import re
from collections import Counter
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from jitbatch.inspect.terminal import HEADINGS, facts, further_cells, rows_of, shown_cells
from jitbatch.inspect.verdict import unit
from jitbatch.util.readable import readable_count, readable_place, readable_seconds, short_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitbatch.inspect.report import Advice, Report

COLOURS = ("#4e79a7", "#e8833a", "#59a14f", "#d1495b", "#8e6bb0", "#2a9d9d", "#c49a1a", "#d37295", "#7f6a5c", "#6b8e9e")
"""The colours of lanes, in their order. They are distinct on light and dark backgrounds."""

CELLS, LANES = 12, 24
"""A drawing has a lane for each cell type, or a lane for each function if there are more types than `CELLS`; it has at
most `LANES`."""

_IN_NOTEBOOK = [HEADINGS.index(name) for name in ("calls", "distinct", "steps", "width", "pad", "time", "compile")]

MARKS = {"yes": "✓", "partly": "◐", "hardly": "✗"}

NOTHING = "Nothing: no change that jitbatch knows of would save much."

_TEMPLATE = "_page.html"


def colour(lane: int) -> str:
    return COLOURS[lane % len(COLOURS)]


def _colour_class(lane: int) -> str:
    """Returns the CSS class with the colour of a lane. The page's policy forbids `style` attributes."""
    return f"c{lane % len(COLOURS)}"


def lanes_of(report: "Report") -> tuple[list[str], list[int]]:
    """Returns the names of the lanes of the drawings, and the lane of each cell."""
    if len(report.cells) <= CELLS:
        return [cell.name for cell in report.cells], list(range(len(report.cells)))
    lane_of: dict[tuple[str, str], int] = {}
    of_cell = [lane_of.setdefault((cell.function, cell.where), len(lane_of)) for cell in report.cells]
    types = Counter(of_cell)
    names = [name if types[n] == 1 else f"{name} ({types[n]} types)" for n, (name, _) in enumerate(lane_of)]
    if len(names) > LANES:
        names = [*names[: LANES - 1], f"{len(names) - LANES + 1} other functions"]
    return names, [min(lane, LANES - 1) for lane in of_cell]


def table_html(report: "Report") -> str:
    """Returns the report as HTML for a notebook: verdict, advice, table and totals.

    The table has the columns that fit beside each other in a notebook. Text and page have all of them.
    """
    cell = "padding:2px 6px;text-align:right"
    first = "padding:2px 6px;text-align:left;white-space:normal;overflow-wrap:anywhere"
    names = [HEADINGS[0], *(HEADINGS[at] for at in _IN_NOTEBOOK)]
    head = "".join(f'<th style="{cell if at else first}">{escape(name)}</th>' for at, name in enumerate(names))
    lines = []
    shown = shown_cells(report)
    for row in rows_of(report, shown):
        name = escape(row[0]).replace(" ", "&nbsp;") if row[0].startswith(" ") else escape(row[0])
        where = f"<br><small>{escape(row[1])}</small>" if row[1] else ""
        texts = "".join(f'<td style="{cell}">{escape(row[at])}</td>' for at in _IN_NOTEBOOK)
        lines.append(f'<tr><td style="{first}">{name}{where}</td>{texts}</tr>')
    return (
        f"<p><b>{escape(report.function)}</b> <code>{escape(readable_place(report.where))}</code></p>"
        f"<p><b>{escape(report.verdict.headline)}</b> {escape(report.verdict.numbers)}</p>"
        f"{_items(report, report.advice, '<br>') or f'<p>{NOTHING}</p>'}"
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f"<p>{escape(further_cells(report, shown))}</p>{_notes(report, '<br>')}{_facts(report)}"
    )


def page(report: "Report") -> str:
    """Returns a self-contained page, with its styles, script and data.

    Names of functions and files cannot inject markup: they are escaped, and placeholders are filled in one pass. The
    page's Content-Security-Policy also blocks all other scripts.
    """
    parts = {
        "title": escape(report.function),
        "where": escape(readable_place(report.where)),
        "grade": report.verdict.grade,
        "mark": MARKS[report.verdict.grade],
        "headline": escape(report.verdict.headline),
        "numbers": escape(report.verdict.numbers),
        "tiles": _tiles(report),
        "legend": _legend(report),
        "table": _table(report),
        "facts": _facts(report),
        "advice": _items(report, report.advice) or f"<p>{NOTHING}</p>",
        "notes": _notes(report),
        "sample": str(report.sample),
        "clock": "measured" if report.measured else "estimated",
        "data": script_json(_data(report)),
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _template())


def _template() -> str:
    """Returns the template with its colours, and with a policy that allows only its own style and script."""
    text = (resources.files("jitbatch") / _TEMPLATE).read_text(encoding="utf-8")
    rules = "\n".join(f".c{lane} {{ background: {code}; }}" for lane, code in enumerate(COLOURS))
    text = text.replace("{{colours}}", rules)
    policy = (
        f"default-src 'none'; script-src {_hash_of('script', text)}; style-src {_hash_of('style', text)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return text.replace("{{policy}}", policy)


def _hash_of(tag: str, text: str) -> str:
    """Returns the Content-Security-Policy source expression that allows the text of the only `<tag>` element."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def script_json(data: Any) -> str:
    """Returns JSON for use inside a `<script>` element, without characters that are special in HTML.

    >>> script_json({"name": "</script> & <!--"})
    '{"name": "\\\\u003c/script\\\\u003e \\\\u0026 \\\\u003c!--"}'
    """
    text = json.dumps(data)  # in ASCII: this escapes U+2028 and U+2029, which end lines in scripts
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(report: "Report") -> dict[str, Any]:
    places = short_paths(cell.where for cell in report.cells)
    names, lanes = lanes_of(report)
    cells = [
        {
            "name": cell.name,
            "where": places[cell.where],
            "shapes": cell.shapes.replace("->", "→") + (f"; {cell.differs}" if cell.differs else ""),
            "lane": lane,
            "parts": [part.name for part in cell.parts],
        }
        for cell, lane in zip(report.cells, lanes, strict=True)
    ]
    return {
        "lanes": [{"name": name, "colour": colour(lane)} for lane, name in enumerate(names)],
        "cells": cells,
        "columns": [dataclasses.asdict(column) for column in report.columns],
        "launches": [dataclasses.asdict(step) for step in report.step_list],
        "nodes": [dataclasses.asdict(node) for node in report.sample_nodes],
    }


def _tiles(report: "Report") -> str:
    what = unit(report)
    tiles = [
        (readable_count(report.samples), "samples"),
        (readable_count(report.calls), "calls"),
        (readable_count(report.distinct), f"distinct {what}"),
        (readable_count(report.steps), f"steps (lower bound {readable_count(report.lower_bound)})"),
        (f"{report.mean_width:.1f}", f"{what} per step (mean)"),
        (f"{100 * report.padding:.0f}%", "of computed rows are padding"),
        (
            readable_seconds(report.times.run) if report.times.run else report.executor,
            "run" if report.times.run else "executor",
        ),
    ]
    return "".join(f"<div class=tile><dt>{escape(name)}</dt><dd>{escape(figure)}</dd></div>" for figure, name in tiles)


def _legend(report: "Report") -> str:
    names, _ = lanes_of(report)
    return "".join(
        f"<li class=key data-lane={lane}><i class={_colour_class(lane)}></i>{escape(name)}</li>"
        for lane, name in enumerate(names)
    )


def _table(report: "Report") -> str:
    """Returns the table. Where a cell is and what tells it from others is told under its name, where it can wrap."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADINGS if name != "where")
    _, lanes = lanes_of(report)
    shown = shown_cells(report)
    lines = []
    for cell, lane in zip(report.cells, lanes, strict=True):
        further = "" if cell in shown else " class=further"
        rows = []
        for name, where, *texts in rows_of(report, [cell]):
            first = f'<th scope="row">{escape(name.strip())}</th>'
            if where:
                differs = f"<small>{_marked(cell.differs)}</small>" if cell.differs else ""
                first = (
                    f'<th scope="row"><i class={_colour_class(lane)}></i>{escape(name)}{differs}'
                    f"<small>{escape(where)}</small></th>"
                )
            cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
            rows.append(f"<tr class={'cell' if where else 'part'}>{first}{cells}</tr>")
        lines.append(f"<tbody{further}>{''.join(rows)}</tbody>")
    button = ""
    if left_out := len(report.cells) - len(shown):
        button = f"<button type=button id=more hidden>Show {left_out} more types</button>"
    return f"<table><thead><tr>{head}</tr></thead>{''.join(lines)}</table>{button}"


def _facts(report: "Report") -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(report) if text)
    return f"<dl>{rows}</dl>"


def _notes(report: "Report", after_place: str = "") -> str:
    return f"<h3>Good to know</h3>{_items(report, report.notes, after_place)}" if report.notes else ""


def _items(report: "Report", some: "Sequence[Advice]", after_place: str = "") -> str:
    """Returns advice or notes as a list, "" if there are none. In a notebook, without styles, places end a line."""
    if not some:
        return ""
    places = short_paths([report.where, *(advice.where for advice in some if advice.where)])
    items = ""
    for advice in some:
        where = f"<small>{escape(places[advice.where])}</small>{after_place}" if advice.where else ""
        code = f"<pre>{where}<code>{escape(advice.code)}</code></pre>" if where else ""
        saves = f". <b>{escape(advice.saves)}</b>" if advice.saves else ""
        items += f"<li>{_marked(advice.text)}{saves}{code}</li>"
    return f"<ol>{items}</ol>"


def _marked(text: str) -> str:
    """Returns text as HTML, with backquoted parts as `<code>`."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if piece_id % 2 else piece for piece_id, piece in enumerate(pieces))
