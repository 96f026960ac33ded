"""Counts, times and source lines as short text."""

import os
import re
from collections.abc import Iterable


def readable_count(count: float) -> str:
    """A count in at most five characters.

    >>> [readable_count(n) for n in (7, 1234, 56_789, 1.2e6, 3e9)]
    ['7', '1,234', '56.8k', '1.2M', '3.0G']
    """
    if count < 10_000:
        return f"{count:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if count < 1000 * size or unit == "T":
            return f"{count / size:.1f}{unit}"
    raise AssertionError


def readable_seconds(seconds: float | None) -> str:
    """A duration with its unit.

    >>> [readable_seconds(s) for s in (None, 2.5e-6, 0.0123, 4.2)]
    ['not measured', '2.5 us', '12.3 ms', '4.20 s']
    """
    if seconds is None:
        return "not measured"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def short_paths(places: Iterable[str]) -> dict[str, str]:
    """Each `file:line` without the folders that all of them have in common.

    >>> short_paths(["/a/b/model.py:3", "/a/b/c/util.py:5"])
    {'/a/b/model.py:3': 'model.py:3', '/a/b/c/util.py:5': 'c/util.py:5'}
    """
    shown = {place: readable_place(place) for place in places}
    folders = [os.path.dirname(place) for place in shown.values() if os.path.isabs(place)]
    common = os.path.commonpath(folders) if folders else ""
    return {key: os.path.relpath(place, common) if os.path.isabs(place) else place for key, place in shown.items()}


def readable_place(place: str) -> str:
    """A `file:line`. The temporary file of a cell of a notebook has no name that a reader knows.

    >>> readable_place("/tmp/ipykernel_17/2046.py:3"), readable_place("/a/model.py:5")
    ('notebook cell:3', '/a/model.py:5')
    """
    return re.sub(r".*[/\\\\]ipykernel_\d+[/\\\\]\d+\.py(?=:\d+$)", "notebook cell", place)
