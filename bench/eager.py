"""Calls of `.batch` on samples, as in an evaluation or a small service: how often they compile, and how long they take.

    python bench/eager.py [--data DIR] [--calls 500] [--most 64] [--hidden 64] [--executors auto dispatch]

Each call has a random number of samples, from 1 to `--most`, drawn from SST (or random trees without `--data`).
Compilations are those of XLA, of whatever program; times are wall-clock, the median and the 90th percentile, in
milliseconds, of the second half of the calls.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import models
import numpy as np
from timing import compilations
from trees import random_sentences

from jitbatch import jitbatch
from jitbatch.data import Vocabulary, read_sst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--executors", nargs="+", default=["auto"])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    words = Vocabulary()
    samples = read_sst(options.data / "sst" / "train.txt", words) if options.data else random_sentences(rng, 4096)
    params = models.binary_params(options.hidden, max(len(words), 1000))
    for executor in options.executors:
        function = jitbatch(models.root_loss.__wrapped__, executor=executor)
        calls = np.random.default_rng(1)
        seconds = []
        with compilations() as compiled:
            for _ in range(options.calls):
                count = int(calls.integers(1, options.most + 1))
                batch = [samples[i] for i in calls.integers(len(samples), size=count)]
                start = time.perf_counter()
                jax.block_until_ready(function.batch(params, batch))
                seconds.append(time.perf_counter() - start)
        later = 1e3 * np.array(seconds[len(seconds) // 2 :])
        row = {
            "executor": executor,
            "calls": options.calls,
            "compilations": len(compiled),
            "compiling, s": round(sum(compiled), 1),
            "first call, s": round(seconds[0], 2),
            "median, ms": round(float(np.median(later)), 2),
            "90 %, ms": round(float(np.quantile(later, 0.9)), 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
