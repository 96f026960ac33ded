"""What can be trained: data, a model, its loss of one sample, and how well it does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flax import nnx

from jitbatch import Plan, jitbatch
from jitbatch.cli._settings import Settings


class Decorated(Protocol):
    """A decorated function of a model and one sample."""

    def __call__(self, model: Any, sample: Any, /) -> Any: ...
    def plan(self, *args: Any, like: Any = None) -> Plan: ...
    def batch(self, *args: Any) -> Any: ...


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        description: of the data, for people.
        train, dev, test: samples.
        model: the module, initialised.
        loss, predict: of the model and one sample.
        metrics: of predictions and samples, by name; the first one says which epoch is best, larger is better.
        baselines: what simpler methods achieve on the test data, by name, in terms of the first metric.
    """

    description: str
    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]
    model: nnx.Module
    loss: Decorated
    predict: Decorated
    metrics: Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
    baselines: Mapping[str, Callable[[], float]] = field(default_factory=dict)


def make_task(settings: Settings) -> Task:
    return TASKS[settings.task](settings)


# ListOps


@jitbatch
def predict_listops(model: Any, sample: Any) -> Any:
    return model.predict(sample.expression)


def listops(settings: Settings) -> Task:
    from jitbatch.cli._baselines import bag_of_symbols, majority
    from jitbatch.data.listops import make_listops, to_string
    from jitbatch.models.listops import ListOpsTreeLSTM

    assert settings.train_size is not None
    assert settings.depth is not None
    sizes = [settings.train_size, 1000, 2000]
    train, dev, test = (limited(split, settings) for split in make_listops(settings.seed, sizes, settings.depth))
    examples = ", ".join(f"{to_string(sample.expression)} = {sample.value}" for sample in train[:2])
    return Task(
        description=f"ListOps: {len(train):,} expressions of depth 1 to {settings.depth}, for example {examples}",
        train=train,
        dev=dev,
        test=test,
        model=ListOpsTreeLSTM(settings.hidden, rngs=nnx.Rngs(settings.seed)),
        loss=ListOpsTreeLSTM.loss,
        predict=predict_listops,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, [s.value for s in samples])},
        baselines={
            "bag of symbols": lambda: bag_of_symbols(train, test, settings.seed),
            "majority class": lambda: majority([s.value for s in train], [s.value for s in test]),
        },
    )


TASKS: dict[str, Callable[[Settings], Task]] = {"listops": listops}


# Parts of the above


def limited(samples: Sequence[Any], settings: Settings) -> Sequence[Any]:
    """What `--limit` leaves of a split."""
    return samples[: settings.limit]


def accuracy(predictions: Sequence[Any], labels: Sequence[Any]) -> float:
    return float(np.mean(np.asarray(predictions) == np.asarray(labels)))
