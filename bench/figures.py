"""The figures of `fused.py`, `planning.py` and `auto.py`, each run as its own command, as rows of a result file.

python bench/figures.py [--data DIR] [--full | --quick] [--figures NAME ...]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from command import alone, results_of
from results import Failed, Job, Row

HERE = Path(__file__).parent


class Command(NamedTuple):
    """A script of this folder with its options, and when it comes."""

    script: str
    options: str
    rank: int = 4
    reads_data: bool = True


FULL = {
    "by hand, SST, hidden 128": Command("fused.py", "--only 2 --cases sst --hidden 128"),
    "by hand, SICK, hidden 150": Command("fused.py", "--only 2 --cases sick --hidden 150"),
    "products": Command("fused.py", "--only 5 --hidden 128"),
    "large minibatches": Command("fused.py", "--only 6 --cases sst --hidden 128"),
    "planning, SST": Command("planning.py", "--cases sst"),
    "planning, SICK": Command("planning.py", "--cases sick"),
    "planning, a core for XLA": Command("planning.py", "--batches 64 --trees 640 --apart"),
    "auto": Command("auto.py", "", reads_data=False),
    "jitted per sample": Command("fused.py", "--only 3 --cases sst --hidden 128"),
    "dispatch": Command("fused.py", "--only 4 --hidden 128"),
    "compilations": Command("fused.py", "--only 1 --cases sst --hidden 128", rank=6),
    "by hand, SST, hidden 256": Command("fused.py", "--only 2 --cases sst --hidden 256", rank=6),
    "by hand, SICK, hidden 128 and 256": Command("fused.py", "--only 2 --cases sick --hidden 128 256", rank=6),
}
SHORT = {
    "by hand": Command("fused.py", "--only 2 --hidden 128 --batch 64 --rounds 3"),
    "planning": Command("planning.py", "--batches 64 --trees 512"),
    "auto": Command("auto.py", "--rounds 31", reads_data=False),
}
QUICK = {
    "by hand": Command("fused.py", "--quick --only 2 5"),
    "planning": Command("planning.py", "--batches 4 --trees 16 --hidden 8"),
    "auto": Command("auto.py", "--rounds 3 --hidden 8", reads_data=False),
}


def measure(command: Command, options: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        call = [sys.executable, str(HERE / command.script), *command.options.split(), "--json", str(file)]
        call += ["--data", str(options.data)] if options.data and command.reads_data else []
        done = subprocess.run(call, env=environment(command), check=False)
        if done.returncode:
            raise Failed(f"{command.script} {command.options} ended with {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return {"command": f"{command.script} {command.options}".strip(), "rows": rows}


def environment(command: Command) -> dict[str, str]:
    """Where compilations are timed, none may come from a file."""
    kept = dict(os.environ)
    if "--only 1" in command.options:
        kept.pop("JAX_COMPILATION_CACHE_DIR", None)
    return kept


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figures", nargs="+", metavar="NAME", help="; ".join(FULL))


def jobs(options: argparse.Namespace, _: ExitStack) -> list[Job]:
    commands = QUICK if options.quick else FULL if options.full else SHORT
    if options.figures:
        commands = {name: (FULL | commands)[name] for name in options.figures}
    results = results_of(options, "figures", {})
    return [
        Job(results, {"figure": name}, partial(measure, command, options), command.rank)
        for name, command in commands.items()
    ]


if __name__ == "__main__":
    alone(__doc__, jobs, add_options)
