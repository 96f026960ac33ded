"""What can be trained: data, a model, its loss of one sample, and how well it does."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jitbatch import Plan, jitbatch
from jitbatch.cli import _baselines
from jitbatch.cli._errors import CommandError
from jitbatch.cli._metrics import accuracy, mean_squared_error, pearson, spearman
from jitbatch.cli._settings import Settings
from jitbatch.data import Vocabulary, make_listops, read_sick, read_sst, read_vectors
from jitbatch.data.listops import to_string
from jitbatch.models import ListOpsTreeLSTM, Sentiment, Similarity


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
            "bag of symbols": lambda: _baselines.bag_of_symbols(train, test, settings.seed),
            "majority class": lambda: _baselines.majority([s.value for s in train], [s.value for s in test]),
        },
    )


# SICK


@jitbatch
def predict_sick(model: Any, sample: Any) -> Any:
    return model.predict(sample.left, sample.right)


def sick(settings: Settings) -> Task:
    words, (train, dev, test) = read_splits(
        settings, "", read_sick, lambda pair: (*tokens(pair.left), *tokens(pair.right))
    )
    size, vectors = embedding(settings, words)
    model = Similarity(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed))
    set_vectors(model.encoder.embed, vectors)

    def metrics(predictions: Sequence[Any], samples: Sequence[Any]) -> dict[str, float]:
        scores = [sample.score for sample in samples]
        return {
            "pearson": pearson(predictions, scores),
            "spearman": spearman(predictions, scores),
            "mse": mean_squared_error(predictions, scores),
        }

    return Task(
        description=described("SICK", [train, dev, test], "pairs of sentences", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=Similarity.loss,
        predict=predict_sick,
        metrics=metrics,
    )


def tokens(tree: Any) -> Iterator[int]:
    yield tree.token
    for child in tree.children:
        yield from tokens(child)


# SST


@jitbatch
def predict_sst(model: Any, sample: Any) -> Any:
    return model.predict(sample.tree)


def sst(settings: Settings) -> Task:
    words, (train, dev, test) = read_splits(settings, ".txt", read_sst, lambda sentence: jax.tree.leaves(sentence.tree))
    size, vectors = embedding(settings, words)
    model = Sentiment(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed))
    set_vectors(model.encoder.embed, vectors)

    def roots(samples: Sequence[Any]) -> list[int]:
        return [int(sample.labels[-1]) for sample in samples]

    return Task(
        description=described("SST", [train, dev, test], "sentences, five classes", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=Sentiment.loss,
        predict=predict_sst,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, roots(samples))},
        baselines={"majority class": lambda: _baselines.majority(roots(train), roots(test))},
    )


TASKS: dict[str, Callable[[Settings], Task]] = {"listops": listops, "sick": sick, "sst": sst}


# Parts of the above


def read_splits(
    settings: Settings,
    suffix: str,
    read: Callable[[Path, Vocabulary], list[Any]],
    words_of: Callable[[Any], Iterable[int]],
) -> tuple[Vocabulary, list[list[Any]]]:
    """The three splits in a folder, and the words that occur at least twice in the training data.

    All others are the unknown word, which so has a vector that is trained.
    """
    assert settings.data is not None
    paths = [Path(settings.data) / f"{split}{suffix}" for split in ("train", "dev", "test")]
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path} is missing. What --data DIR must hold is said by jitbatch train --help")
    seen = Vocabulary()
    counts = Counter(word for sample in read(paths[0], seen) for word in words_of(sample))
    words = Vocabulary(word for number, word in enumerate(seen) if counts[number] > 1)
    words.freeze()
    return words, [limited(read(path, words), settings) for path in paths]


def limited(samples: list[Any], settings: Settings) -> list[Any]:
    """What `--limit` leaves of a split."""
    return samples[: settings.limit]


def described(name: str, splits: Sequence[Sequence[Any]], what: str, words: Vocabulary) -> str:
    sizes = " / ".join(f"{len(samples):,}" for samples in splits)
    return f"{name}: {sizes} {what}; {len(words):,} words"


def embedding(settings: Settings, words: Vocabulary) -> tuple[int, np.ndarray | None]:
    """The size of word vectors and, where a file was given, the vectors."""
    if settings.vectors is None:
        assert settings.embedding is not None
        return settings.embedding, None
    try:
        table, found = read_vectors(settings.vectors, words, settings.seed)
    except (OSError, ValueError) as error:
        raise CommandError(f"the vectors cannot be read: {error}") from None
    if not found:
        raise CommandError(f"{settings.vectors} has none of the {len(words):,} words")
    return table.shape[1], table


def set_vectors(embed: nnx.Embed, vectors: np.ndarray | None) -> None:
    if vectors is not None:
        embed.embedding[...] = jnp.asarray(vectors)
