"""What every peer's process does: read tasks, run minibatches, answer in JSON. Needs nothing but numpy.

A request is a line: `{"task": {...}}` makes a model and is answered with the loss of the first minibatch, and if it is
to be trained also with its loss after one update; `{"round": ...}` runs all minibatches once and is answered with the
seconds that this took. Answers go to the file descriptor that `ANSWERS` names. A task that differs from the last one
only in that it trains keeps its model. With PROCESSOR_TIME in the environment, seconds are of processors, and PyTorch
has one thread: others would count while they wait.
"""

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LEARNING_RATE = 0.01
IS_PROCESSOR_TIME = "PROCESSOR_TIME" in os.environ
THREADS = 1 if IS_PROCESSOR_TIME else 2


class Task(NamedTuple):
    """What is to be run.

    Attributes:
        workload: SICK, SST, ListOps, tagger or molecules.
        hidden: the size of a state.
        training: whether a minibatch is a step of gradient descent, or only its loss.
        batch: samples in a minibatch.
        minibatches: how many of them are a round.
        distinct: how many samples are different; they come again to fill the minibatches.
        number: samples of the workload, of which the first are taken.
        data: the folder of the data, or None.
        weights: a file of arrays by name.
        samples: a file of samples in JSON.
    """

    workload: str
    hidden: int
    training: bool
    batch: int
    minibatches: int
    distinct: int
    number: int
    data: str | None
    weights: str
    samples: str

    def read_weights(self) -> dict[str, np.ndarray]:
        with np.load(self.weights) as arrays:
            return dict(arrays)

    def read_samples(self) -> list[Any]:
        return json.loads(Path(self.samples).read_text(encoding="utf-8"))[: self.distinct]


class Unsupported(Exception):
    """The peer cannot run this; the text says why."""


class Runner(NamedTuple):
    """A model that is ready to run.

    Attributes:
        samples: what the model calls a sample; preparing one that a data loader would keep is done before.
        run: given minibatches and whether to train, runs one after the other and returns their mean losses.
    """

    samples: Sequence[Any]
    run: Callable[[list[list[Any]], bool], list[float]]


def serve(make: Callable[[Task], Runner], *packages: str) -> None:
    """Answer requests until there are no more; the first answer has the versions of the packages."""
    replies = os.fdopen(int(os.environ["ANSWERS"]), "w", encoding="utf-8")
    sys.setrecursionlimit(10_000)
    server = Server(make)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "task" in request:
                answer: dict[str, Any] = {"losses": server.start(Task(**request["task"]))}
                answer["versions"] = {name: version(name) for name in packages}
            else:
                answer = {"seconds": server.round()}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=replies, flush=True)


class Server:
    """The current task and its model."""

    def __init__(self, make: Callable[[Task], Runner]):
        self._make = make
        self._task: Task | None = None

    def start(self, task: Task) -> list[float]:
        if self._task is None or self._task.training or self._task._replace(training=True) != task:
            self._task = None  # in case of an error
            self._runner = self._make(task)
            samples = self._runner.samples
            turn = itertools.cycle(range(task.distinct))
            self._batches = [[samples[next(turn)] for _ in range(task.batch)] for _ in range(task.minibatches)]
        self._task = task
        losses = self._runner.run(self._batches[:1], False)
        if task.training:
            self._runner.run(self._batches[:1], True)
            losses += self._runner.run(self._batches[:1], False)
        self._runner.run(self._batches, task.training)
        return losses

    def round(self) -> float:
        assert self._task is not None
        clock = time.process_time if IS_PROCESSOR_TIME else time.perf_counter
        start = clock()
        self._runner.run(self._batches, self._task.training)
        return clock() - start
