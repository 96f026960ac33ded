"""jitbatch: each minibatch is planned and then run by one compiled step.

    python ours.py [PREFETCH]

Plans are made as `f.plans` does by default, or so many of them ahead of time in a thread as PREFETCH says.
"""

import sys
from typing import Any

from jax_models import Trainer, numbers, workload_of
from worker import Runner, Task, serve


def make(task: Task) -> Runner:
    workload = workload_of(task)
    model, params = workload.model, workload.params
    trainer = Trainer(lambda params, plan: model.batch(params, plan).mean(), params)
    prefetch = int(sys.argv[1]) if len(sys.argv) > 1 else None
    like: Any = None

    def run(batches: list[list[Any]], training: bool) -> list[float]:
        nonlocal like
        losses = []
        with model.plans(params, batches, prefetch=prefetch, like=like) as plans:
            for like in plans:
                losses.append(trainer.run(like, training))
        return numbers(losses)

    return Runner(workload.samples, run)


serve(make, "jitbatch", "jax", "jaxlib")
