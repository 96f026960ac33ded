"""How long a person waits for the first training step: from the first call to its end.

    python bench/first_call.py [--data DIR] [--batch 64] [--hidden 128]

Each measurement is a process of its own, which imports, reads the data, and calls a step under `jitbatch.jit` twice:
without JAX's persistent compilation cache, with an empty one, and with the one that the process before has filled.
Seconds are wall-clock; `compiling` is what XLA took of the first call.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(options: argparse.Namespace) -> None:
    import jax
    import optax
    from fused import make_settings
    from timing import compilations
    from training import make_step

    import jitbatch

    options.cases, options.loss, options.rounds, options.quick = ["sst"], "root", None, False
    size, hidden = options.batch, options.hidden
    options.batch, options.hidden = None, (hidden,)
    case = make_settings(options).cases["SST"]
    optimizer = optax.adam(1e-3)
    step = jitbatch.jit(make_step(case, optimizer))
    params = case.params(hidden)
    state = optimizer.init(params)
    seconds = []
    with compilations() as compiled:
        for first in (0, size):
            begin = time.perf_counter()
            params, state, _ = jax.block_until_ready(step(params, state, case.samples[first : first + size]))
            seconds.append(round(time.perf_counter() - begin, 2))
    row = {"first call": seconds[0], "compiling": round(sum(compiled), 2), "second call": seconds[1]}
    print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--alone", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.alone:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        for name, variables in (("no cache", {}), ("empty cache", cache), ("filled cache", cache)):
            command = [sys.executable, __file__, "--alone", *sys.argv[1:]]
            done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
            print(json.dumps({"cache": name, **json.loads(done.stdout.splitlines()[-1])}), flush=True)


if __name__ == "__main__":
    main()
