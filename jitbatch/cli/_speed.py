"""How fast a plain loop over samples would have been on the same machine."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.cli._task import Task


def loop_samples_per_second(task: Task, samples: Sequence[Any], repeats: int = 3) -> float:
    """Loss and gradients of one sample after the other, by the plain function: the median of some repetitions."""
    value_and_grad = jax.value_and_grad(task.loss)
    times = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        jax.block_until_ready([value_and_grad(task.model, sample) for sample in samples])
        times.append(time.perf_counter() - begin)
    return len(samples) / float(np.median(times[1:]))  # the first compiles operations
