"""The verdict of a report: did it batch?"""

from typing import TYPE_CHECKING, NamedTuple

from jitbatch.util.readable import readable_count

if TYPE_CHECKING:
    from jitbatch.inspect.report import PartReport, Report

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


def is_narrow(part: "PartReport", samples: int) -> bool:
    """Returns whether several calls run in steps of less than `SMALL`, or of less than half the samples."""
    return part.distinct > 1 and part.mean_width < min(SMALL, samples / 2)


def judge(report: "Report") -> Verdict:
    """Returns the verdict: by the share of time in narrow steps, and in types of a function that has too many."""
    least = "the least" if report.steps <= report.lower_bound else f"{report.lower_bound} is the least"
    numbers = (
        f"{_counted(report.calls, 'call')} run in {_counted(report.steps, 'step')} ({least} for these types), "
        f"{report.mean_width:.1f} different ones a step."
    )
    if report.executor == "per_sample":
        return Verdict("hardly", "Each sample runs by itself.", f"{report.reason}.")
    if not report.steps:
        return Verdict("yes", "There is nothing to run.", "The samples make no calls.")
    narrow = _narrow_share(report)
    if narrow <= MOSTLY:
        return Verdict("yes", "It batched.", numbers)
    numbers += f" {100 * narrow:.0f}% of the time is in narrow steps."
    if narrow <= HARDLY:
        return Verdict("partly", "It batched in part.", numbers)
    return Verdict("hardly", "It hardly batched.", numbers)


def _narrow_share(report: "Report") -> float:
    """Returns the share of time in narrow steps. The types of one function count together: each may have one call."""
    share = 0.0
    together: dict[tuple[str, str], list[PartReport]] = {}
    for cell in report.cells:
        if len(cell.parts) == 1 and cell.distinct == 1:
            together.setdefault((cell.function, cell.where), []).append(cell.main)
        else:
            share += sum(part.share for part in cell.parts if is_narrow(part, report.samples))
    return share + sum(part.share for alone in together.values() if len(alone) > 1 for part in alone)


def _counted(count: int, noun: str) -> str:
    return f"{readable_count(count)} {noun}{'' if count == 1 else 's'}"
