"""Tables, numbers and figures of the page."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Content = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> str:
    """The first columns are texts, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * texts + "---:|" * (len(head) - texts)]
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


def spread(timing: Content) -> str:
    """Half the distance of the quartiles.

    >>> spread({"median": 0.01, "low": 0.0099, "high": 0.0101})
    ' ± 1 %'
    """
    return f" ± {100 * (timing['high'] - timing['low']) / 2 / timing['median']:.0f} %"


def milliseconds(timing: Any) -> str:
    return "" if timing is None else digits(timing["median"] * 1e3) + spread(timing)


def about(content: Content) -> str:
    """Where and when the rows were measured."""
    machine, rows = content["machine"], content["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = [row["load"] for row in rows if row.get("load") is not None]
    load = f", load average {min(loads)} to {max(loads)}" if loads else ""
    count = Counter(row.get("commit", machine["commit"]) for row in rows)
    commits = ", ".join(f"{name} ({number} rows)" if len(count) > 1 else name for name, number in count.items())
    days = sorted({row["at"][:10] for row in rows if "at" in row})
    return (
        f"*Measured on {machine['processor']}, {machine['cores']} cores, {machine['system']}; Python "
        f"{machine['python']}, {versions}; commit {commits or machine['commit']}; data: {content['settings']['data']}"
        f"{load}{'; ' + ' to '.join(sorted({days[0], days[-1]})) if days else ''}.*"
    )


def failures(rows: Iterable[Content]) -> str:
    """Rows that could not be measured, and why."""
    lines = [
        f"- {', '.join(f'{name} {value}' for name, value in row['key'].items())}: "
        + (row.get("skipped") or "it failed: " + row["failed"].strip().splitlines()[-1])
        for row in rows
        if "skipped" in row or "failed" in row
    ]
    return "Not measured:\n\n" + "\n".join(lines) if lines else ""


def saved(figure: Any, file: Path, caption: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.set_layout_engine("constrained")
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return f"![{caption}]({file.parent.name}/{file.name})"
