"""What every peer's process does: read tasks, run minibatches, answer in JSON. Needs nothing but numpy.

A request is a line: `{"task": {...}}` makes a model and is answered with the loss of the first minibatch, and if it is
to be trained also with its loss after one update; `{"round": ...}` runs all minibatches once and is answered with the
seconds that this took. What libraries print goes to stderr.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LEARNING_RATE = 0.01
THREADS = 2


class Task(NamedTuple):
    """What is to be run.

    Attributes:
        workload: SICK, SST, ListOps or tagger.
        hidden: the size of a state.
        training: whether a minibatch is a step of gradient descent, or only its loss.
        batch: samples in a minibatch.
        minibatches: how many of them are a round.
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
    number: int
    data: str | None
    weights: str
    samples: str

    def read_weights(self) -> dict[str, np.ndarray]:
        with np.load(self.weights) as arrays:
            return dict(arrays)

    def read_samples(self) -> list[Any]:
        return json.loads(Path(self.samples).read_text(encoding="utf-8"))[: self.batch * self.minibatches]


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


def serve(make: Callable[[Task], Runner]) -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.setrecursionlimit(10_000)
    runner: Runner | None = None
    batches: list[list[Any]] = []
    training = False
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "task" in request:
                task = Task(**request["task"])
                training = task.training
                start = time.perf_counter()
                runner = make(task)
                batches = [list(runner.samples[i * task.batch : (i + 1) * task.batch]) for i in range(task.minibatches)]
                losses = runner.run(batches[:1], False)
                if training:
                    runner.run(batches[:1], True)
                    losses += runner.run(batches[:1], False)
                runner.run(batches, training)
                answer: dict[str, Any] = {"losses": losses, "seconds to start": time.perf_counter() - start}
            else:
                assert runner is not None
                start = time.perf_counter()
                runner.run(batches, training)
                answer = {"seconds": time.perf_counter() - start}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=replies, flush=True)
