"""The options that all benchmarks have, and running one of them alone."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from results import FOLDER, Job, Results, run
from workloads import WORKLOADS

from jitbatch import keep_memory


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of `sick` and `sst`; without it, trees are random")
    parser.add_argument("--full", action="store_true", help="everything: hours")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--minutes", type=float, help="begin nothing new after so long; the next run goes on there")
    parser.add_argument("--go-on", action="store_true", help="do not measure again what other code has measured")
    parser.add_argument("--rounds", type=int, help="how often each contestant has its turn")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--batch", type=int, nargs="+", help="sizes of minibatches")
    parser.add_argument("--results", type=Path, default=FOLDER, help="the folder of result files")
    return parser


def results_of(options: argparse.Namespace, benchmark: str, settings: dict[str, Any]) -> Results:
    """The file of a benchmark with these options; a full, a normal and a quick run have one each."""
    suffix = "-quick" if options.quick else "-full" if options.full else ""
    described = {"data": "random trees" if options.data is None else "SICK and SST", **settings}
    # As it will be when it is read again: lists instead of tuples, names instead of numbers.
    file = options.results / f"{benchmark}{suffix}.json"
    return Results(file, benchmark, json.loads(json.dumps(described)), options.go_on)


def alone(
    description: str | None,
    jobs: Callable[[argparse.Namespace, ExitStack], list[Job]],
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """The command of one benchmark."""
    parser = parser_of(description)
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    keep_memory()
    with ExitStack() as stack:
        sys.exit(0 if run(jobs(options, stack), options.minutes) else 1)
