"""Training a task: minibatches, steps and evaluation. It feels like any other training with Flax and Optax.

A trainer is driven from outside: `run` yields a record after each step and each epoch, and between two records the
trainer can be saved, and left.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jitbatch import Capacity, Plan, Ragged
from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import Settings
from jitbatch.cli._tasks import Decorated, Task

WORK = ("analysis", "compile", "execution")
"""What time is spent on: waiting for plans, compiling programs for them, running these."""


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
    """A record of one pass over the training data and what it achieved on the development data.

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
    """How far a run has come. With the seed, it determines all that is random: orders are drawn anew for each epoch."""

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
        rooms: by name of a program the last plan, or the capacity of one: what the next is planned `like`.
        on_analysis: called while samples are analysed before their program is compiled, which may take a while: with
            how many are done, and of how many.
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
        self.rooms: dict[str, Plan | Capacity] = {}
        self.on_analysis: Callable[[int, int], None] = lambda done, samples: None
        self._update = update_program(task.loss)

    # Training

    def run(self) -> Iterator[Step | Epoch]:
        """Train to the last epoch, from wherever it stands."""
        while self.progress.epoch < self.settings.epochs:
            yield from self._steps()
            yield self._end_of_epoch()

    def _steps(self) -> Iterator[Step]:
        progress = self.progress
        order = np.random.default_rng([self.settings.seed, progress.epoch]).permutation(len(self.task.train))
        shuffled = [self.task.train[i] for i in order]
        self._make_room("update", self.task.loss, shuffled)
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
        for chosen, plan in self._plans("update", self.task.loss, samples):
            weights = self._weights(len(chosen))
            run = self._compiled(self._update, self.model, self.optimizer, plan, weights)
            with self._clock("execution"):
                self.model, self.optimizer, value = run(self.model, self.optimizer, plan, weights)
                loss = float(value)
            yield chosen, loss

    def _end_of_epoch(self) -> Epoch:
        progress = self.progress
        speed = progress.samples / sum(progress.seconds.values())
        seconds, loss = progress.seconds, progress.summed_loss / progress.samples
        progress.seconds = dict.fromkeys(WORK, 0.0)
        progress.epoch, progress.samples, progress.summed_loss = progress.epoch + 1, 0, 0.0
        dev = self.evaluate(self.task.dev)
        metric = next(iter(dev.values()))
        is_best = metric > progress.best_metric
        if is_best:
            self.best = nnx.state(self.model)
            progress.best_epoch, progress.best_metric = progress.epoch, metric
        progress.seconds = dict.fromkeys(WORK, 0.0)  # those of an epoch are of its steps alone
        return Epoch(progress.epoch, progress.step, loss, dev, is_best, speed, seconds, self._update.compilations)

    # Evaluation

    def evaluate(self, samples: Sequence[Any]) -> dict[str, float]:
        """The metrics of the model on some samples; the first one is what an epoch is selected by."""
        return self.task.metrics(self.predictions(samples), samples)

    def predictions(self, samples: Sequence[Any]) -> list[Any]:
        predict = self.task.predict
        if not isinstance(predict, Decorated):
            return [one for chosen in self._minibatches(samples) for one in predict(self.model, chosen)]
        if self.settings.executor == "loop":
            return [jax.tree.map(np.asarray, predict(self.model, sample)) for sample in samples]
        self._make_room("predict", predict, samples)
        program = predict_program(predict)
        found: list[Any] = []
        for chosen, plan in self._plans("predict", predict, samples):
            run = self._compiled(program, self.model, plan)
            with self._clock("execution"):
                result = run(self.model, plan)
                rows = result.to_list() if isinstance(result, Ragged) else list(np.asarray(result))
            found += rows[: len(chosen)]
        return found

    def evaluate_best(self, samples: Sequence[Any]) -> dict[str, float]:
        """The metrics of the epoch that was best on the development data. The model has its parameters afterwards."""
        nnx.update(self.model, self.best)
        return self.evaluate(samples)

    # Parts of the above

    def _plans(self, name: str, function: Decorated, samples: Sequence[Any]) -> Iterator[tuple[Sequence[Any], Plan]]:
        """Minibatches and their plans, which a thread makes while earlier ones run.

        A minibatch that is smaller than the others is filled up with its own first sample, so that it fits the same
        program. It costs nothing, since equal calls are computed once.
        """
        batches = list(self._minibatches(samples))
        full = ([*batch, *[batch[0]] * (self.batch_size - len(batch))] for batch in batches)
        with function.plans(self.model, full, like=self.rooms.get(name)) as plans:
            for batch in batches:
                with self._clock("analysis"):
                    plan = next(plans)
                self.rooms[name] = plan
                yield batch, plan

    def _weights(self, samples: int) -> np.ndarray:
        """Those of a minibatch, such that its loss is the mean of its samples, without what fills it up."""
        return (np.arange(self.batch_size) < samples).astype(np.float32) / samples

    def _make_room(self, name: str, function: Decorated, samples: Sequence[Any]) -> None:
        """Plan all minibatches before the first is run, so that the first program has room for nearly all that come."""
        if self.settings.executor == "batch" and name not in self.rooms:
            done = 0
            for chosen, _ in self._plans(name, function, samples):
                done += len(chosen)
                self.on_analysis(done, len(samples))

    def _minibatches(self, samples: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(samples), self.batch_size):
            yield samples[start : start + self.batch_size]

    def _compiled(self, program: "Program", *args: Any) -> Callable[..., Any]:
        with self._clock("compile"):
            return program.compiled(*args)

    @contextmanager
    def _clock(self, work: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.progress.seconds[work] += time.perf_counter() - begin


class Program:
    """A function that is compiled once for all arguments of equal structure and shapes, apart from being run."""

    def __init__(self, function: Callable[..., Any]):
        self._jitted = jax.jit(function)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def compiled(self, *args: Any) -> Callable[..., Any]:
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        if key not in self._compiled:
            self._compiled[key] = self._jitted.lower(*args).compile()
        return self._compiled[key]

    @property
    def compilations(self) -> int:
        return len(self._compiled)


# These are cached, so that equal settings are one program within a process.


@functools.cache
def update_rule(learning_rate: float, weight_decay: float, steps: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(schedule, weight_decay=weight_decay))


@functools.cache
def predict_program(predict: Decorated) -> Program:
    return Program(lambda model, plan: predict.batch(model, plan))


@functools.cache
def update_program(loss: Decorated) -> Program:
    """Forward, backward and update for a planned minibatch."""

    def update(model: nnx.Module, optimizer: nnx.Optimizer[Any], plan: Plan, weights: np.ndarray) -> Any:
        value, gradients = jax.value_and_grad(lambda m: jnp.vdot(loss.batch(m, plan), weights))(model)
        optimizer.update(model, gradients)
        return model, optimizer, value

    return Program(update)


def update_loop(loss: Decorated, model: nnx.Module, optimizer: nnx.Optimizer[Any], samples: Sequence[Any]) -> float:
    """The same without jitbatch: one sample after the other, each by the plain function that it is."""
    total, gradients = 0.0, None
    for sample in samples:
        value, gradient = jax.value_and_grad(loss)(model, sample)
        total += float(value)
        gradients = gradient if gradients is None else jax.tree.map(jnp.add, gradients, gradient)
    optimizer.update(model, jax.tree.map(lambda sum: sum / len(samples), gradients))
    return total / len(samples)


def as_json(record: Step | Epoch) -> dict[str, Any]:
    return {"kind": type(record).__name__.lower(), **dataclasses.asdict(record)}
