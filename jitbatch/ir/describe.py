"""Plans, capacities and reports as short text: kinds of one name are told apart, long lists are cut."""

from collections import Counter
from collections.abc import Iterable, Sequence

from jitbatch.ir.tables import Kind

MOST = 40
"""Lines, or entries, that are printed of one list."""


def kind_names(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """The names of kinds; with shapes, where several have one name."""
    distinct = list(dict.fromkeys(kinds))
    count = Counter(kind.cell.name for kind in distinct)
    return {k: f"{k.cell.name} ({k.shapes})" if count[k.cell.name] > 1 else k.cell.name for k in distinct}


def largest(lines: Sequence[tuple[int, str]], most: int = MOST) -> list[str]:
    """Lines with their sizes: all of them, or the largest in their order and how many more there are.

    >>> largest([(1, "one"), (5, "five"), (2, "two"), (9, "nine")], most=2)
    ['five', 'nine', '... and 2 more']
    """
    if len(lines) <= most:
        return [line for _, line in lines]
    kept = sorted(sorted(range(len(lines)), key=lambda at: -lines[at][0])[:most])
    return [*(lines[at][1] for at in kept), f"... and {len(lines) - most} more"]
