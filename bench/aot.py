"""Steps compiled for accelerators that this machine does not have, and what the compilers say of them.

    python bench/aot.py [--data DIR] [--targets v5e v5p h100] [--cases SST SICK] [--batch 64] [--hidden 128]
                        [--modes training inference] [--programs jitbatch "by hand" products] [--dtype float32]
                        [--loops auto] [--json FILE]

`libtpu` compiles for a TPU topology and the CUDA plugin for a description of an H100, without either. Each is installed
in an environment of its own below `bench/.environments`, by the extras `aot-tpu` and `aot-cuda` (the second has some
5.7 GB). A row of the table is a step:

- launches: fusions and other operations on arrays that the device starts, with the real trip counts of the plan;
- checks: evaluations of a loop's condition;
- us, adjusted us: the TPU compiler's estimate of cycles at the clock rate, as it is, and without the fixed cost that it
  adds to fusions which stay in the fast memory. Both are estimates, good for comparing programs with each other;
- copies: arena-sized copies in the bodies of loops, and the bytes that they copy in a step;
- temporary memory, seconds of compilation, and rows computed by rows needed.
"""

import argparse
import json
import os
import site
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".environments"
TARGETS = {"v5e": ("tpu", "aot-tpu"), "v5p": ("tpu", "aot-tpu"), "h100": ("gpu", "aot-cuda")}
"""The platform and the environment of each target."""
GIGAHERTZ = {"v5e": 1.5, "v5p": 1.75}
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
GPU_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"
HEADER = ("target", "step", "program", "launches", "checks", "us", "adjusted us", "copies", "MB", "compile s", "rows")


class Missing(Exception):
    """A compiler that cannot be installed here."""


def python_of(environment: str, make: bool = True) -> Path:
    """Returns the interpreter of an environment with a compiler and all packages of this one.

    Args:
        environment: an extra of the project.
        make: whether to make the environment if it is missing.

    Raises:
        Missing: there is none.
    """
    folder = ENVIRONMENTS / environment
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    if not make:
        raise Missing(f"the compiler of {environment} is not installed: run bench/aot.py once")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "borrowed.pth").write_text(borrowed, encoding="utf-8")
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"][environment]
    print(f"installing {' '.join(wanted)}", flush=True)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *wanted]
    if subprocess.run(command, check=False).returncode:
        raise Missing(f"{' '.join(wanted)} cannot be installed")
    done.touch()
    return python


def compiled(spec: dict[str, Any], make: bool = True) -> dict[str, Any]:
    """Compiles a program (see `ahead/worker`) and returns its costs."""
    platform, environment = TARGETS[spec["target"]]
    python = python_of(environment, make)
    defaults = {"platform": platform, "loops": "auto", "dtype": "float32", "data": None, "program": "jitbatch"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {GPU_FLAGS}" if platform == "gpu" else ""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(python), str(HERE / "ahead" / "worker.py"), json.dumps({**defaults, **spec})],
        env={**os.environ, **SETTINGS, "XLA_FLAGS": flags, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{spec} was not compiled:\n{done.stderr[-3000:]}")
    return {**spec, **json.loads(done.stdout.splitlines()[-1])}


def line_of(row: dict[str, Any]) -> list[str]:
    """Returns a line of the table."""
    clock = GIGAHERTZ.get(row["target"])
    times = [f"{row[name] / clock / 1e3:.0f}" if clock else "" for name in ("cycles", "adjusted")]
    step = f"{row['case']} {row['batch']}/{row['hidden']} {row['mode']}"
    copies = f"{row['copies']} ({row['copied'] / 1e6:.0f} MB)" if row["copies"] else "0"
    rows = f"{row['padded_rows'] / row['rows']:.2f}" if "rows" in row else ""
    numbers = [row["launches"], row["checks"], *times, copies, f"{row['temporary'] / 1e6:.1f}", row["compile"], rows]
    return [row["target"], step, row["program"], *map(str, numbers)]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *map(line_of, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def specs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for target in options.targets:
        for case in options.cases:
            for mode in options.modes:
                for program in options.programs:
                    yield {
                        "target": target, "case": case, "batch": options.batch, "hidden": options.hidden, "mode": mode,
                        "program": program, "data": options.data and str(options.data.resolve()),
                        "dtype": options.dtype, "loops": options.loops,
                    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with `sst` and `sick`; without it, trees are random")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--cases", nargs="+", choices=("SST", "SICK"), default=["SST", "SICK"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--modes", nargs="+", choices=("training", "inference"), default=["training"])
    parser.add_argument("--programs", nargs="+", default=["jitbatch", "by hand", "products"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--loops", default="auto")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args(arguments)
    rows = []
    for spec in specs(options):
        try:
            rows.append(compiled(spec))
        except Missing as missing:
            print(f"{spec['target']} is skipped: {missing}", flush=True)
            continue
        print(" | ".join(line_of(rows[-1])), flush=True)
    print("\n" + table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
