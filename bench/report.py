"""Turn result files into `docs/benchmarks.md` and its plots.

    python bench/report.py [--results DIR] [--docs DIR] [--quick]

For each benchmark, the file of a full run is taken if there is one, else that of a normal run; with `--quick`, that of
a quick run, to see what the page looks like.
"""

import argparse
from pathlib import Path

import results
from parts import figures, goals, growth, on_device, peers, speed, tradeoff
from parts.text import Content

DOCS = Path(__file__).parent.parent / "docs"
PARTS = {
    "peers": peers.part,
    "tradeoff": tradeoff.part,
    "growth": growth.part,
    "figures": figures.part,
    "on_device": on_device.part,
}
INTRODUCTION = """# Benchmarks

Samples a second against other frameworks, what analysis costs and what it gains, and how both grow. Made by
`python bench/run.py --data DIR --full`, where DIR holds `sick` and `sst`; `make bench` is a short run on data made on
the fly. `bench/report.py` made this page from the result files, and every row in them is on it; `bench/regress.py OLD
NEW` compares two of them."""


def newest(folder: Path, benchmark: str, quick: bool) -> Content | None:
    for suffix in ("-quick",) if quick else ("-full", ""):
        file = folder / f"{benchmark}{suffix}.json"
        if file.exists():
            return results.read(file)
    return None


def page(folder: Path, docs: Path, quick: bool) -> str:
    parts = [INTRODUCTION]
    contents = {name: content for name in PARTS if (content := newest(folder, name, quick)) and content["rows"]}
    if "peers" in contents:
        rows = [row for row in contents["peers"]["rows"] if "peers" in row]
        parts.append(goals.part(rows))
        parts.append(speed.draw(rows, docs / "images"))
    parts += [PARTS[name](content, docs / "images") for name, content in contents.items()]
    return "\n\n".join(filter(None, parts)) + "\n"


def write(folder: Path, docs: Path, quick: bool = False) -> None:
    docs.mkdir(parents=True, exist_ok=True)
    file = docs / "benchmarks.md"
    file.write_text(page(folder, docs, quick), encoding="utf-8")
    print(f"wrote {file}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="the folder of result files")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where benchmarks.md and images go")
    parser.add_argument("--quick", action="store_true", help="of a quick run")
    options = parser.parse_args(arguments)
    write(options.results, options.docs, options.quick)


if __name__ == "__main__":
    main()
