"""Short texts for plans, capacities and reports: distinct names of kinds, and lists of limited length."""

from collections import Counter
from collections.abc import Iterable, Sequence

from jitbatch.ir.tables import Kind

MOST = 40
"""The largest number of lines or entries that are printed of one list."""


def kind_names(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """A name for each kind, with array shapes where several kinds have one name."""
    distinct = list(dict.fromkeys(kinds))
    count = Counter(kind.cell.name for kind in distinct)
    return {k: f"{k.cell.name} ({k.shapes})" if count[k.cell.name] > 1 else k.cell.name for k in distinct}


def largest(lines: Sequence[tuple[int, str]], most: int = MOST) -> list[str]:
    """The lines of the `most` largest sizes, in their original order, and the number of the others, if any.

    >>> largest([(1, "one"), (5, "five"), (2, "two"), (9, "nine")], most=2)
    ['five', 'nine', '... and 2 more']
    """
    if len(lines) <= most:
        return [line for _, line in lines]
    kept = sorted(sorted(range(len(lines)), key=lambda at: -lines[at][0])[:most])
    return [*(lines[at][1] for at in kept), f"... and {len(lines) - most} more"]
