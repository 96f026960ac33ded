"""A report as HTML: a table for notebooks, and a separate page with drawings."""

import base64
import dataclasses
import hashlib
import json
import re
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from jitbatch.inspect.terminal import HEADINGS, facts, further_cells, rows_of
from jitbatch.ir.describe import MOST
from jitbatch.util.readable import readable_count, readable_seconds, short_paths

if TYPE_CHECKING:
    from jitbatch.inspect.report import Report

COLOURS = ("#4e79a7", "#e8833a", "#59a14f", "#d1495b", "#8e6bb0", "#2a9d9d", "#c49a1a", "#d37295", "#7f6a5c", "#6b8e9e")
"""The colours of cell types, in the order of `Report.cells`. They are distinct on light and dark backgrounds."""

_TEMPLATE = "_page.html"


def colour(cell: int) -> str:
    return COLOURS[cell % len(COLOURS)]


def _colour_class(cell: int) -> str:
    """Returns the CSS class with the colour of a cell. The page's policy forbids `style` attributes."""
    return f"c{cell % len(COLOURS)}"


def table_html(report: "Report") -> str:
    """Returns the report as HTML for a notebook: a heading, a table, totals and advice."""
    cell = "padding:2px 10px;text-align:right"
    first = "padding:2px 10px;text-align:left;white-space:pre"
    head = "".join(f'<th style="{first if i < 2 else cell}">{escape(name)}</th>' for i, name in enumerate(HEADINGS))
    lines = []
    for row in rows_of(report, MOST):
        texts = "".join(f'<td style="{first if i < 2 else cell}">{escape(text)}</td>' for i, text in enumerate(row))
        lines.append(f"<tr>{texts}</tr>")
    return (
        f"<p><b>{escape(report.function)}</b> <code>{escape(report.where)}</code></p>"
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        f"<p>{escape(further_cells(report, MOST))}</p>{_facts(report)}{_advice(report)}"
    )


def page(report: "Report") -> str:
    """Returns a self-contained page, with its styles, script and data.

    Names of functions and files cannot inject markup: they are escaped, and placeholders are filled in one pass. The
    page's Content-Security-Policy also blocks all other scripts.
    """
    parts = {
        "title": escape(report.function),
        "where": escape(report.where),
        "tiles": _tiles(report),
        "legend": _legend(report),
        "table": _table(report),
        "facts": _facts(report),
        "advice": _advice(report) or "<p>Nothing stayed small.</p>",
        "sample": str(report.sample),
        "clock": "measured" if report.measured else "estimated",
        "data": script_json(_data(report)),
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _template())


def _template() -> str:
    """Returns the template with its colours, and with a policy that allows only its own style and script."""
    text = (resources.files("jitbatch") / _TEMPLATE).read_text(encoding="utf-8")
    rules = "\n".join(f".c{number} {{ background: {one}; }}" for number, one in enumerate(COLOURS))
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
    cells = [
        {
            "name": cell.name,
            "where": places[cell.where],
            "shapes": cell.shapes.replace("->", "→") + (f"; {cell.differs}" if cell.differs else ""),
            "colour": colour(number),
            "parts": [part.name for part in cell.parts],
        }
        for number, cell in enumerate(report.cells)
    ]
    return {
        "cells": cells,
        "columns": [dataclasses.asdict(column) for column in report.columns],
        "steps": [dataclasses.asdict(step) for step in report.step_list],
        "nodes": [dataclasses.asdict(node) for node in report.sample_nodes],
    }


def _tiles(report: "Report") -> str:
    tiles = [
        (readable_count(report.samples), "samples"),
        (readable_count(report.nodes), "calls"),
        (readable_count(report.distinct), "distinct calls"),
        (readable_count(report.steps), f"steps, {report.lower_bound} at least"),
        (f"{report.mean_width:.1f}", "calls a step"),
        (f"{100 * report.padding:.0f}%", "padding"),
        (
            readable_seconds(report.times.run) if report.times.run else report.executor,
            "run" if report.times.run else "executor",
        ),
    ]
    return "".join(
        f"<div class=tile><b>{escape(number)}</b><span>{escape(name)}</span></div>" for number, name in tiles
    )


def _legend(report: "Report") -> str:
    return "".join(
        f"<span class=key data-cell={number}><i class={_colour_class(number)}></i>{escape(cell.name)}</span>"
        for number, cell in enumerate(report.cells)
    )


def _table(report: "Report") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    lines, number = [], -1
    for row in rows_of(report):
        is_part = row[0].startswith("  ")
        number += not is_part
        mark = "" if is_part else f"<i class={_colour_class(number)}></i>"
        texts = "".join(f"<td>{mark if i == 0 else ''}{escape(text.strip())}</td>" for i, text in enumerate(row))
        lines.append(f"<tr class={'part' if is_part else 'cell'}>{texts}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _facts(report: "Report") -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(report) if text)
    return f"<dl>{rows}</dl>"


def _advice(report: "Report") -> str:
    if not report.advice:
        return ""
    places = short_paths(advice.where for advice in report.advice if advice.where)
    items = "".join(
        f"<li>{f'<code>{escape(places[advice.where])}</code> ' if advice.where else ''}{_marked(advice.text)}</li>"
        for advice in report.advice
    )
    return f"<ul>{items}</ul>"


def _marked(text: str) -> str:
    """Returns text as HTML, with backquoted parts as `<code>`."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
