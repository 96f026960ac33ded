"""The verdict of a report: did it batch?"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jitbatch.util.readable import readable_count

if TYPE_CHECKING:
    from jitbatch.inspect.report import CellReport, PartReport, Report

SMALL = 4
"""The mean width below which a step is narrow."""

MOSTLY, HARDLY = 0.25, 0.75
"""A batch is a good one if at most `MOSTLY` of its time is in narrow steps, and hardly one if more than `HARDLY` is."""


class Verdict(NamedTuple):
    """Whether samples were batched.

    Attributes:
        grade: `"yes"`, `"partly"` or `"hardly"`.
        headline: the answer in a few words.
        numbers: the numbers behind it, in one or two sentences.
    """

    grade: str
    headline: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.headline} {self.numbers}"


def are_narrow(parts: Sequence["PartReport"], samples: int) -> bool:
    """Returns whether several calls run in steps of less than `SMALL`, or of less than half the samples.

    Several types of one function with one call each are narrow, too.
    """
    if len(parts) > 1 and all(part.distinct == 1 for part in parts):
        return True
    distinct, steps = sum(part.distinct for part in parts), sum(part.steps for part in parts)
    return distinct > 1 and distinct < steps * min(SMALL, samples / 2)


def narrow_cells(cells: Sequence["CellReport"], samples: int) -> Iterator[list[int]]:
    """Yields the indices of narrow cells. The types of one function that have one call each are yielded together."""
    together: dict[tuple[str, str], list[int]] = {}
    for cell_id, cell in enumerate(cells):
        if len(cell.parts) == 1 and cell.distinct == 1:
            together.setdefault((cell.function, cell.where), []).append(cell_id)
        elif any(are_narrow([part], samples) for part in cell.parts):
            yield [cell_id]
    yield from (alone for alone in together.values() if are_narrow([cells[at].main for at in alone], samples))


def judge(report: "Report") -> Verdict:
    """Returns the verdict: by the share of time in narrow steps, and by what the first advice on types would save."""
    numbers = (
        f"{_counted(report.calls, 'call')} run in {_counted(report.steps, 'step')} (lower bound "
        f"{readable_count(report.lower_bound)}), {report.mean_width:.1f} distinct {unit(report)} a step."
    )
    if report.executor == "per_sample":
        return Verdict("hardly", "Each sample runs by itself.", f"{report.reason}.")
    if not report.steps:
        return Verdict("yes", "There is nothing to run.", "The samples make no calls.")
    narrow = _narrow_share(report)
    if narrow > MOSTLY:
        numbers += f" {100 * narrow:.0f}% of the time is in narrow steps."
    if narrow > HARDLY:
        return Verdict("hardly", "It hardly batched.", numbers)
    if narrow > MOSTLY:
        return Verdict("partly", "It batched in part.", numbers)
    if any(advice.types and advice.gain >= MOSTLY for advice in report.advice):
        return Verdict("partly", "It batched, but in too many types.", numbers)
    return Verdict("yes", "It batched.", numbers)


def unit(report: "Report") -> str:
    """Returns what steps run: calls, or the parts of calls if some cells are split at loops."""
    return "calls" if all(len(cell.parts) == 1 for cell in report.cells) else "parts of calls"


def _narrow_share(report: "Report") -> float:
    """Returns the share of time in narrow steps."""
    share = 0.0
    for cell_ids in narrow_cells(report.cells, report.samples):
        cells = [report.cells[cell_id] for cell_id in cell_ids]
        parts = [part for cell in cells for part in cell.parts]
        if len(cells) == 1:
            parts = [part for part in parts if are_narrow([part], report.samples)]
        share += sum(part.share for part in parts)
    return share


def _counted(count: int, noun: str) -> str:
    return f"{readable_count(count)} {noun}{'' if count == 1 else 's'}"
