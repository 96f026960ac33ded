"""The task of functions of Python: which word does the name of a function begin with?"""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from jitbatch.cli import _baselines
from jitbatch.cli._memory import make_model
from jitbatch.cli._metrics import accuracy
from jitbatch.cli._settings import Settings
from jitbatch.cli._splits import read_function_splits
from jitbatch.cli._task import Task, described
from jitbatch.data.ast_functions import nodes
from jitbatch.models import FunctionNamer


def ast(settings: Settings) -> Task:
    vocabularies, (train, dev, test) = read_function_splits(settings)
    assert settings.embedding is not None
    kinds, fields, words, firsts = map(len, vocabularies)
    sizes = kinds, fields, words, firsts, settings.embedding, settings.hidden
    count = sum(1 for split in (train, dev, test) for sample in split for _ in nodes(sample.tree))

    def names(samples: Sequence[Any]) -> list[int]:
        return [sample.name for sample in samples]

    def types(tree: Any) -> list[int]:
        return [node.kind for node in nodes(tree)]

    def types_and_words(tree: Any) -> list[int]:
        return types(tree) + [kinds + word for node in nodes(tree) for word in node.tokens]

    def linear(items: Callable[[Any], list[int]]) -> float:
        bags = ([(items(sample.tree), sample.name) for sample in split] for split in (train, dev, test))
        return _baselines.bag_of_items(*bags, seed=settings.seed)

    return Task(
        description=described("ast", [train, dev, test], f"functions, {count:,} nodes", vocabularies.tokens)
        + f"; which of {firsts - 1} words does the name begin with? No file is in two splits",
        train=train,
        dev=dev,
        test=test,
        model=make_model(lambda: FunctionNamer(*sizes, rngs=nnx.Rngs(settings.seed)), settings),
        loss=FunctionNamer.loss,
        predict=FunctionNamer.predict,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, names(samples))},
        baselines={
            "bag of node types and words": lambda: linear(types_and_words),
            "bag of node types": lambda: linear(types),
            "majority class": lambda: _baselines.majority(names(train), names(test)),
        },
    )
