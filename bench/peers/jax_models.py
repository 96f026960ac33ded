"""What the JAX peers have in common: the workload, and a step of training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from worker import LEARNING_RATE, Task
from workloads import Workload, make_workload


def workload_of(task: Task) -> Workload:
    return make_workload(task.workload, Path(task.data) if task.data else None, task.number, task.hidden)


class Trainer:
    """Parameters that change; the loss is of parameters and whatever a minibatch is, and compiled once for each of its
    shapes."""

    def __init__(self, loss: Callable[[Any, Any], jax.Array], params: Any):
        def step(params: Any, batch: Any) -> tuple[Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), value

        self._step = jax.jit(step, donate_argnums=0)
        self._loss = jax.jit(loss)
        self._params = jax.tree.map(lambda leaf: leaf.copy(), params)

    def run(self, batch: Any, training: bool) -> jax.Array:
        if not training:
            return self._loss(self._params, batch)
        self._params, loss = self._step(self._params, batch)
        return loss


def numbers(losses: list[jax.Array]) -> list[float]:
    """Waits until all are computed."""
    return [float(loss) for loss in losses]
