"""jitbatch: each minibatch is planned and then run by one compiled step.

    python ours.py PREFETCH

Plans are made ahead of time in a thread, so many as PREFETCH says; with 0, one after the other.
"""

import sys
from typing import Any

from jax_models import Trainer, numbers, workload_of
from worker import Runner, Task, serve


def make(task: Task) -> Runner:
    workload = workload_of(task)
    model, params = workload.model, workload.params
    trainer = Trainer(lambda params, plan: model.batch(params, plan).mean(), params)
    like: Any = None

    def run(batches: list[list[Any]], training: bool) -> list[float]:
        nonlocal like
        losses = []
        with model.plans(params, batches, prefetch=int(sys.argv[1]), like=like) as plans:
            for like in plans:
                losses.append(trainer.run(like, training))
        return numbers(losses)

    return Runner(workload.samples, run)


serve(make, "jitbatch", "jax", "jaxlib")
