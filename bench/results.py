"""Result files: what was measured, where and with what. A run that was interrupted goes on where it stopped.

A file holds the rows of one benchmark and the machine they were measured on. A row has a key, which says what was
measured, and values; those that were timed are a median and two quartiles in seconds (`timing.Timing`). Rows of other
settings or of another machine are not mixed with new ones: the old file is renamed. Rows of other code stay until they
are measured again, and with a copy of the file, too; each row names the commit that it is of. A row that failed, and
one of other code, is measured again if it is asked for, unless one asks to go on with the latter.
"""

import json
import os
import platform
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("jitbatch", "jax", "jaxlib", "flax", "numpy")

Key = dict[str, Any]
Row = dict[str, Any]


class Skipped(Exception):
    """Something cannot be measured here; the text says why."""


class Failed(Exception):
    """Something went wrong, or is not what it should be; it is not timed."""


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    """The last commit that changed what is measured, with a plus if files differ from it."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    reporting = ("report.py", "parts", "regress.py", "simulation.py", "results")
    measured = ("jitbatch", "bench", *(f":(exclude)bench/{name}" for name in reporting))
    name = git("log", "-1", "--format=%h", "--", *measured) or "unknown"
    return name + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", *measured) else "")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "commit": commit(),
    }


class Results:
    """The rows of one benchmark in a file, which is written after each of them.

    Args:
        go_on: whether rows that other code measured need not be measured again.
    """

    def __init__(self, file: Path, benchmark: str, settings: dict[str, Any], go_on: bool = False):
        self.file = file
        self._go_on = go_on
        header = {"benchmark": benchmark, "settings": settings, "machine": machine()}
        known = read(file) if file.exists() else None
        if known is not None:
            code = known["machine"]["commit"]
            for row in known["rows"]:
                row.setdefault("commit", code)
            known["machine"]["commit"] = header["machine"]["commit"]
            is_other = any(known[name] != value for name, value in header.items())
            if is_other or (code != header["machine"]["commit"] and not go_on):
                older = file.with_suffix(f".{time.strftime('%Y%m%d-%H%M%S')}.json")
                shutil.copy(file, older)
                print(f"{file.name} is of other code, settings or machine: kept as {older.name}", flush=True)
            known = None if is_other else known
        self.content: dict[str, Any] = known or header | {"rows": []}

    @property
    def rows(self) -> list[Row]:
        return self.content["rows"]

    def has(self, key: Key) -> bool:
        code = self.content["machine"]["commit"]
        return any(
            row["key"] == key and "failed" not in row and (self._go_on or row["commit"] == code) for row in self.rows
        )

    def add(self, key: Key, values: Row) -> None:
        load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
        at, code = time.strftime("%Y-%m-%dT%H:%M:%S"), self.content["machine"]["commit"]
        row = {"key": key, **values, "load": load, "at": at, "commit": code}
        self.content["rows"] = [*(other for other in self.rows if other["key"] != key), row]
        write(self.file, self.content)


class Job(NamedTuple):
    """One row to be measured.

    Attributes:
        results: the file it goes to.
        rank: rows of lower rank are measured first, whatever their benchmark.
    """

    results: Results
    key: Key
    measure: Callable[[], Row]
    rank: int = 0


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, content: dict[str, Any]) -> None:
    """Write to another file first, so that an interruption leaves the old one whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(file)


def run(jobs: Sequence[Job], minutes: float | None = None) -> bool:
    """Measure what is in no file yet, the most important first, and say how far it got. When the time is over, nothing
    new is begun. Returns whether nothing failed."""
    todo = sorted((job for job in jobs if not job.results.has(job.key)), key=lambda job: job.rank)
    if len(todo) < len(jobs):
        print(f"{len(jobs) - len(todo)} of {len(jobs)} rows were measured before", flush=True)
    failed = 0
    start = time.perf_counter()
    for number, job in enumerate(todo, 1):
        begin = time.perf_counter()
        if minutes is not None and begin - start > 60 * minutes:
            print(f"{minutes:g} minutes are over; not measured yet: {len(todo) - number + 1} of {len(jobs)} rows")
            break
        name = f"{job.results.content['benchmark']}: {describe(job.key)}"
        print(f"[{number}/{len(todo)}, {_duration(begin - start)}] {name}", flush=True)
        try:
            values = job.measure()
        except Skipped as reason:
            values = {"skipped": str(reason)}
        except Exception:
            values = {"failed": traceback.format_exc()}
            failed += 1
        seconds = time.perf_counter() - begin
        job.results.add(job.key, values | {"seconds": round(seconds, 1)})
        print(f"    {_duration(seconds)}: {_show(values)}", flush=True)
    return not failed


def describe(key: Key) -> str:
    return ", ".join(f"{value}" if isinstance(value, str) else f"{name} {value}" for name, value in key.items())


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def is_timing(value: Any) -> bool:
    return isinstance(value, dict) and {"median", "low", "high"} <= value.keys()


def _show(values: Row) -> str:
    def one(value: Any) -> str:
        if is_timing(value):
            return f"{value['median'] * 1e3:.4g} ms"
        if isinstance(value, float):
            return f"{value:.4g}"
        if isinstance(value, dict):
            return "(" + ", ".join(f"{name} {one(part)}" for name, part in value.items()) + ")"
        return str(value)

    return ", ".join(f"{name} {one(value)}" for name, value in values.items())
