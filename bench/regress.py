"""Compare two result files of one benchmark and print what became slower, or faster, beyond noise.

    python bench/regress.py OLD.json NEW.json [--threshold 0.05]

A timing changed if its median differs by more than the threshold and the middle halves of the old and the new rounds do
not overlap. The exit code is 1 if something became slower.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import results


class Change(NamedTuple):
    """A timing before and after."""

    key: dict[str, Any]
    name: str
    old: dict[str, float]
    new: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.new["median"] / self.old["median"]

    def is_beyond_noise(self, threshold: float) -> bool:
        apart = self.new["low"] > self.old["high"] or self.new["high"] < self.old["low"]
        return apart and abs(self.ratio - 1) > threshold

    def __str__(self) -> str:
        what = ", ".join(f"{name} {value}" for name, value in self.key.items())
        before, after = (f"{one['median'] * 1e3:.4g} ms" for one in (self.old, self.new))
        return f"{self.ratio:.2f} times the time: {what}: {self.name} {before} -> {after}"


def timings(values: Any, name: str = "") -> Iterator[tuple[str, dict[str, float]]]:
    """All timings of a row, each with its name."""
    if results.is_timing(values):
        yield name, values
    elif isinstance(values, dict):
        for part, value in values.items():
            if part != "key":
                yield from timings(value, f"{name} {part}".strip())
    elif isinstance(values, list):
        for one in values:
            if isinstance(one, dict):
                described = ", ".join(f"{part} {value}" for part, value in one.items() if isinstance(value, str | int))
                yield from timings(one, f"{name} ({described})")


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Every timing that is in both files."""
    if old["benchmark"] != new["benchmark"]:
        raise ValueError(f"these are results of different benchmarks: {old['benchmark']} and {new['benchmark']}")
    before = {(str(row["key"]), name): timing for row in old["rows"] for name, timing in timings(row)}
    return [
        Change(row["key"], name, before[str(row["key"]), name], timing)
        for row in new["rows"]
        for name, timing in timings(row)
        if (str(row["key"]), name) in before
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=0.05, help="smaller changes are noise")
    options = parser.parse_args(arguments)
    old, new = results.read(options.old), results.read(options.new)
    for part in old["machine"].keys() | new["machine"].keys():
        was, now = old["machine"].get(part), new["machine"].get(part)
        if part != "commit" and was != now:
            print(f"careful: {part} differs: {was} -> {now}")
    compared = changes(old, new)
    beyond = sorted((one for one in compared if one.is_beyond_noise(options.threshold)), key=lambda one: -one.ratio)
    slower = [one for one in beyond if one.ratio > 1]
    print(f"{len(compared)} timings of {old['machine']['commit']} and {new['machine']['commit']} compared")
    for name, some in (("slower", slower), ("faster", [one for one in beyond if one.ratio < 1])):
        print(f"{name}: {len(some)}")
        for one in some:
            print(f"  {one}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
