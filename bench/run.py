"""All benchmarks, the most important rows first, and the page they are reported on.

    python bench/run.py [--data DIR] [--full | --quick] [--minutes N] [--only NAME ...] [options of these benchmarks]

Run with `make bench`: minutes, on data made on the fly. With `--data DIR`, the folder of `sick` and `sst`, on real
trees; with `--full`, the whole grid, which takes hours. After `--minutes` nothing new is begun. A run that was stopped,
or had not enough time, is followed by a report of what there is; the next goes on there: what the same code measured
before is not measured again, and with `--go-on` nor what other code did. Compiled programs are kept in
`bench/.compiled`, since compiling takes longer than all else and is not what is timed: `--rounds 1 --results DIR
--docs DIR` with other folders compiles all, for a run later.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import figures
import growth
import jax
import report
import results
import tradeoff
from command import parser_of
from peers import run as peers

from jitbatch import keep_memory

COMPILED = Path(__file__).parent / ".compiled"
BENCHMARKS: dict[str, Any] = {"peers": peers, "tradeoff": tradeoff, "growth": growth, "figures": figures}


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--docs", type=Path, default=report.DOCS, help="where the report goes")
    for module in BENCHMARKS.values():
        if hasattr(module, "add_options"):
            module.add_options(parser)
    options = parser.parse_args(arguments)
    keep_compiled()
    keep_memory()
    try:
        with ExitStack() as stack:
            jobs = [job for name in options.only for job in BENCHMARKS[name].jobs(options, stack)]
            complete = results.run(jobs, options.minutes)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        complete = False
    report.write(options.results, options.docs, options.quick)
    return 0 if complete else 1


def keep_compiled() -> None:
    """What is compiled, in this process and those that it starts."""
    folder = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
    least = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(least))


if __name__ == "__main__":
    sys.exit(main())
