"""Runs many programs: `python -m fuzz --count 1000 --seed 1`.

Programs run in processes of some hundred each, so that memory stays bounded and a crash costs one program. How far a
seed has come is kept in a file, and the next run goes on from there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from fuzz import QUICK_COMPILATION

os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

BATCH = 200
"""Programs in a process."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="which programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--state", type=Path, default=Path("../.fuzz"), help="the folder of progress and failures")
    parser.add_argument("--start", type=int, help="run programs from this number on in this process")
    options = parser.parse_args()
    if options.start is not None:
        run_here(options.seed, options.start, options.count, options.state)
    else:
        sys.exit(run_in_processes(options.seed, options.count, options.seconds, options.state))


def run_in_processes(seed: int, count: int, seconds: float, state: Path) -> int:
    """Run the programs of a seed up to a count; how many failed."""
    state.mkdir(parents=True, exist_ok=True)
    progress = state / f"{seed}.json"
    known = {"done": 0, "failed": [], "unstable": 0}
    if progress.exists():
        known = json.loads(progress.read_text())
    began, first = time.monotonic(), known["done"]
    while known["done"] < count and time.monotonic() - began < seconds:
        start = known["done"]
        size = min(BATCH, count - start)
        command = [sys.executable, "-m", "fuzz", "--seed", str(seed), "--start", str(start), "--count", str(size)]
        with subprocess.Popen([*command, "--state", str(state)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                report = json.loads(line)
                known["done"] = report["number"] + 1
                known["unstable"] += report["unstable"]
                known["failed"] += [report["number"]] * report["failed"]
                progress.write_text(json.dumps(known))
                rate = (known["done"] - first) / (time.monotonic() - began)
                _show(f"seed {seed}: {known['done']} of {count} programs, {rate:.1f} a second", known)
        if process.returncode:
            crashed = known["done"]
            known["done"] += 1
            known["failed"].append(crashed)
            progress.write_text(json.dumps(known))
            print(f"\nthe process ended with {process.returncode} in program {crashed} of seed {seed}", flush=True)
    print()
    return min(len(known["failed"]), 1)


def _show(text: str, known: dict) -> None:
    numbers = f", failed: {known['failed']}" if known["failed"] else ""
    print(f"\r{text}, {known['unstable']} runs not judged{numbers}", end="", flush=True)


def run_here(seed: int, start: int, count: int, state: Path) -> None:
    """Run some programs, printing a line of JSON for each; failures are made small and written to files."""
    from fuzz.programs import make_program
    from fuzz.shrink import shrink
    from fuzz.trials import choices_of, try_program
    from jitbatch.util import passes

    verified = passes.verified()
    verified.__enter__()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)  # an eighth of the time goes into collecting
    for number in range(start, start + count):
        choices = choices_of(seed, number)
        failure, unstable = try_program(make_program(choices))
        if failure is not None:
            path = state / f"failure-{seed}-{number}.py"
            path.write_text(str(failure))
            path.write_text(str(shrink(choices.taken, failure)))
        print(json.dumps({"number": number, "failed": failure is not None, "unstable": unstable}), flush=True)


main()
