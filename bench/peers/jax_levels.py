"""JAX, batched by hand level by level (see `baselines/levels.py`). Making the tables of a minibatch is counted; what
they are padded to was fitted to all minibatches before, so that one program runs them all."""

from typing import Any

from baselines import levels
from jax_models import Trainer, numbers, workload_of
from worker import Runner, Task, Unsupported, serve

LEVELS_IN_A_SCAN = 4


def make(task: Task) -> Runner:
    workload = workload_of(task)
    samples = workload.samples[: task.distinct]
    batches = [samples[i : i + task.batch] for i in range(0, len(samples), task.batch)]
    fit: Any
    prepare: Any
    if task.workload == "SICK":
        fit, prepare, loss = levels.fit_pairs, levels.prepare_pairs, levels.pair_loss
    elif task.workload == "SST":
        fit, prepare = levels.fit_binary, levels.prepare_binary

        def loss(params: Any, tables: Any) -> Any:
            return levels.binary_loss(params, tables, every_node=True)
    else:
        raise Unsupported(f"there is no {task.workload} batched by hand in JAX")
    sizes = fit(batches, LEVELS_IN_A_SCAN)
    trainer = Trainer(loss, workload.params)

    def run(batches: list[list[Any]], training: bool) -> list[float]:
        return numbers([trainer.run(prepare(batch, sizes), training) for batch in batches])

    return Runner(samples, run)


serve(make, "jax", "jaxlib")
