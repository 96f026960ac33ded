"""All benchmarks, one after the other, and the page they are reported on.

    python bench/run.py [--data DIR] [--full | --quick] [--only NAME ...] [options of these benchmarks]

Run with `make bench`: minutes, on data made on the fly. With `--data DIR`, the folder of `sick` and `sst`, on real
trees; with `--full`, the whole grid, which takes hours. What the same code measured before is not measured again.
"""

import growth
import report
import tradeoff
from command import parser_of
from peers import run as peers

BENCHMARKS = {"tradeoff": tradeoff.main, "growth": growth.main, "peers": peers.main}


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--docs", default=str(report.DOCS), help="where the report goes")
    options, further = parser.parse_known_args(arguments)
    given = ["--results", str(options.results)]
    given += ["--data", str(options.data)] if options.data else []
    given += ["--rounds", str(options.rounds)] if options.rounds else []
    mode = ["--full"] * options.full + ["--quick"] * options.quick
    for name in options.only:
        print(f"\n{name}", flush=True)
        BENCHMARKS[name]([*given, *mode, *further])
    report.main(["--results", str(options.results), "--docs", options.docs, *["--quick"] * options.quick])


if __name__ == "__main__":
    main()
