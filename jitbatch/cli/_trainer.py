"""Training a task: minibatches, steps and evaluation. It feels like any other training with Flax and Optax.

A trainer is driven from outside: `run` yields a record after each step and each epoch, and between two records the
trainer can be saved, and left.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jitbatch import Jitted, Ragged, StepCapacity, jit
from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import Settings
from jitbatch.cli._task import Decorated, Task
from jitbatch.data import local

WORK = ("analysis", "compile", "execution")
"""The activities that take time: planning, compiling programs, and waiting for them to run."""


@dataclass(frozen=True)
class Step:
    """A record of one update. `samples` is how many of its epoch are done, `mean_loss` is their loss."""

    epoch: int
    step: int
    samples: int
    loss: float
    mean_loss: float
    seconds: dict[str, float]


@dataclass(frozen=True)
class Epoch:
    """A record of one pass over the training data, with the metrics on the development data.

    `compilations` is how many programs for updates this process has compiled so far.
    """

    epoch: int
    step: int
    loss: float
    dev: dict[str, float]
    is_best: bool
    samples_per_second: float
    seconds: dict[str, float]
    compilations: int


@dataclass
class Progress:
    """The progress of a run. With the seed, it determines all random numbers: each epoch has a new order."""

    epoch: int = 0  # finished ones
    samples: int = 0  # of the unfinished one
    step: int = 0
    summed_loss: float = 0.0  # of these samples
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORK, 0.0))  # spent on them
    best_epoch: int = 0
    best_metric: float = -math.inf


class Trainer:
    """A task in training.

    Attributes:
        model, optimizer: the Flax module and its `nnx.Optimizer`.
        best: the state of the model after the epoch that was best on the development data.
        steps: by name, the compiled steps: `update`, and `predict` where the task has one.
    """

    def __init__(self, task: Task, settings: Settings):
        self.task = task
        self.settings = settings
        self.model = task.model
        self.batch_size = min(settings.batch_size, len(task.train))
        steps = settings.epochs * math.ceil(len(task.train) / self.batch_size)
        rule = update_rule(settings.learning_rate, settings.weight_decay, steps)
        self.optimizer = nnx.Optimizer(self.model, rule, wrt=nnx.Param)
        self.best = nnx.state(self.model)
        self.progress = Progress()
        self.mesh = jax.make_mesh((jax.device_count(),), ("data",)) if jax.device_count() > 1 else None
        if self.mesh is not None and settings.executor == "loop":
            raise CommandError("a plain loop runs on one device: leave --executor loop, or the other devices, out")
        if self.mesh is not None and task.differentiable is not None:
            raise CommandError("training on forces runs on one device: leave --forces, or the other devices, out")
        self.steps: dict[str, Jitted[..., Any]] = {"update": update_step(task, self.batch_size, self.mesh)}
        if isinstance(task.predict, Decorated):
            self.steps["predict"] = predict_step(task.predict, self.batch_size)

    @property
    def capacities(self) -> dict[str, StepCapacity]:
        """The sizes of the compiled steps. A trainer that gets them before it runs has the same programs."""
        return {name: step.capacity for name, step in self.steps.items()}

    @capacities.setter
    def capacities(self, capacities: Mapping[str, StepCapacity]) -> None:
        for name, capacity in capacities.items():
            self.steps[name].capacity = capacity

    # Training

    def run(self, of_first: Callable[[str], str] = str) -> Iterator[Step | Epoch]:
        """Train to the last epoch, from wherever it stands. `of_first` returns the text that process 0 gives it."""
        while self.progress.epoch < self.settings.epochs:
            yield from self._steps()
            yield self._end_of_epoch(of_first)

    def _steps(self) -> Iterator[Step]:
        progress = self.progress
        order = np.random.default_rng([self.settings.seed, progress.epoch]).permutation(len(self.task.train))
        shuffled = [self.task.train[i] for i in order]
        for samples, loss in self._updates(shuffled[progress.samples :]):
            if not math.isfinite(loss):
                raise CommandError(
                    f"the loss is {loss} after {progress.step + 1} steps. Try a smaller --learning-rate than "
                    f"{self.settings.learning_rate:g} in a new run"
                )
            progress.step += 1
            progress.samples += len(samples)
            progress.summed_loss += loss * len(samples)
            mean = progress.summed_loss / progress.samples
            yield Step(progress.epoch + 1, progress.step, progress.samples, loss, mean, dict(progress.seconds))

    def _updates(self, samples: Sequence[Any]) -> Iterator[tuple[Sequence[Any], float]]:
        """One update after the other: its samples and their loss."""
        if self.settings.executor == "loop":
            for chosen in self._minibatches(samples):
                with self._clock("execution"):
                    loss = update_loop(self.task.loss, self.model, self.optimizer, chosen)
                yield chosen, loss
            return
        update = self.steps["update"]

        def run(planned: Any) -> Any:
            self.model, self.optimizer, value = update(self.model, self.optimizer, planned)
            return value

        batches = list(self._minibatches(samples))
        own_batches = list(local(batches, seed=None))
        for chosen, value in zip(batches, self._in_turn(update, run, own_batches), strict=True):
            with self._clock("execution"):
                loss = float(value)
            yield chosen, loss

    def _end_of_epoch(self, of_first: Callable[[str], str]) -> Epoch:
        progress = self.progress
        speed = progress.samples / sum(progress.seconds.values())
        seconds, loss = progress.seconds, progress.summed_loss / progress.samples
        progress.seconds = dict.fromkeys(WORK, 0.0)
        progress.epoch, progress.samples, progress.summed_loss = progress.epoch + 1, 0, 0.0
        dev = json.loads(of_first(json.dumps(self.evaluate(self.task.dev))))
        metric = next(iter(dev.values()))
        is_best = metric > progress.best_metric
        if is_best:
            self.best = nnx.state(self.model)
            progress.best_epoch, progress.best_metric = progress.epoch, metric
        progress.seconds = dict.fromkeys(WORK, 0.0)  # those of an epoch are of its steps alone
        return Epoch(
            progress.epoch, progress.step, loss, dev, is_best, speed, seconds, compilations(self.steps["update"])
        )

    # Evaluation

    def evaluate(self, samples: Sequence[Any]) -> dict[str, float]:
        """The metrics of the model on some samples. The first metric selects the best epoch."""
        return self.task.metrics(self.predictions(samples), samples)

    def _model_here(self) -> nnx.Module:
        """The model on the first device of this process. Each process evaluates all samples by itself."""
        if self.mesh is None:
            return self.model
        definition, state = nnx.split(self.model)
        return nnx.merge(definition, jax.tree.map(lambda leaf: leaf.addressable_data(0), state))

    def predictions(self, samples: Sequence[Any]) -> list[Any]:
        predict, model = self.task.predict, self._model_here()
        if not isinstance(predict, Decorated):
            return [prediction for chosen in self._minibatches(samples) for prediction in predict(model, chosen)]
        if self.settings.executor == "loop":
            return [jax.tree.map(np.asarray, predict(model, sample)) for sample in samples]
        step = self.steps["predict"]
        found: list[Any] = []
        batches = list(self._minibatches(samples))
        results = self._in_turn(step, lambda planned: step(model, planned), batches)
        for chosen, result in zip(batches, results, strict=True):
            with self._clock("execution"):
                rows = result.to_list() if isinstance(result, Ragged) else list(np.asarray(result))
            found += rows[: len(chosen)]
        return found

    def evaluate_best(self, samples: Sequence[Any]) -> dict[str, float]:
        """The metrics of the epoch that was best on the development data. The model has its parameters afterwards."""
        nnx.update(self.model, self.best)
        return self.evaluate(samples)

    # Parts of the above

    def _in_turn(
        self, step: Jitted[..., Any], run: Callable[[Any], Any], batches: Sequence[Sequence[Any]]
    ) -> Iterator[Any]:
        """The results of a step for each minibatch. The next minibatch is planned while the device runs."""
        with step.prefetch(batches) as planned:
            following = self._planned(planned)
            for _ in batches:
                before = compilations(step)
                begin = time.perf_counter()
                result = run(following)
                work = "compile" if compilations(step) > before else "execution"
                self.progress.seconds[work] += time.perf_counter() - begin
                following = self._planned(planned)
                yield result

    def _planned(self, planned: Iterator[Any]) -> Any:
        with self._clock("analysis"):
            return next(planned, None)

    def _minibatches(self, samples: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(samples), self.batch_size):
            yield list(samples[start : start + self.batch_size])

    @contextmanager
    def _clock(self, work: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.progress.seconds[work] += time.perf_counter() - begin


def update_rule(learning_rate: float, weight_decay: float, steps: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(schedule, weight_decay=weight_decay))


def update_step(task: Task, batch_size: int, mesh: jax.sharding.Mesh | None) -> Jitted[..., Any]:
    """Forward, backward and update for a minibatch, which is filled up if it is smaller than the others."""
    losses = task.losses or (lambda model, samples: task.loss.batch(model, samples))

    def update(model: nnx.Module, optimizer: nnx.Optimizer[Any], samples: Any) -> Any:
        weights = samples.mask / samples.mask.sum()
        value, gradients = jax.value_and_grad(lambda m: jnp.vdot(losses(m, samples), weights))(model)
        optimizer.update(model, gradients)
        return model, optimizer, value

    return jit(update, samples="samples", pad=batch_size, mesh=mesh, differentiable=task.differentiable)


def predict_step(predict: Decorated, batch_size: int) -> Jitted[..., Any]:
    return jit(lambda model, samples: predict.batch(model, samples), samples="samples", pad=batch_size)


def compilations(step: Jitted[..., Any]) -> int:
    return step.cache_info()["programs"].misses


def update_loop(loss: Decorated, model: nnx.Module, optimizer: nnx.Optimizer[Any], samples: Sequence[Any]) -> float:
    """An update without jitbatch: the plain loop over the samples."""
    total, gradients = 0.0, None
    for sample in samples:
        value, gradient = jax.value_and_grad(loss)(model, sample)
        total += float(value)
        gradients = gradient if gradients is None else jax.tree.map(jnp.add, gradients, gradient)
    optimizer.update(model, jax.tree.map(lambda sum: sum / len(samples), gradients))
    return total / len(samples)


def as_json(record: Step | Epoch) -> dict[str, Any]:
    return {"kind": type(record).__name__.lower(), **dataclasses.asdict(record)}
