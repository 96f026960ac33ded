"""Run by `test_processes.py` in processes of its own: plans and runs a batch, prints what could differ."""

from __future__ import annotations

import hashlib
import sys

import jax
import jax.monitoring
import numpy as np
from zoo import named

from jitbatch import jitbatch

misses: list[str] = []


def listen(event: str, **_: object) -> None:
    if event == "/jax/compilation_cache/cache_misses":
        misses.append(event)


def main(cache: str) -> None:
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.monitoring.register_event_listener(listen)
    workload = named("child_sum_lists")
    params, samples = workload.draw()
    bits = hashlib.sha256()
    for executor in ("dispatch", "fused"):
        fun = jitbatch(workload.fun, executor=executor)
        plan = fun.plan(params, samples)
        print(plan)
        step = jax.jit(jax.value_and_grad(lambda params, plan, fun=fun: fun.batch(params, plan).sum()))
        for leaf in jax.tree.leaves((plan, fun.batch(params, plan), step(params, plan))):
            bits.update(np.asarray(leaf).tobytes())
    print(bits.hexdigest())
    print(len(misses), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
