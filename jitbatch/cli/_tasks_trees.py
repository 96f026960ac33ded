"""Tasks of trees: ListOps, SICK and SST."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from jitbatch import jitbatch
from jitbatch.cli import _baselines
from jitbatch.cli._errors import CommandError
from jitbatch.cli._memory import make_model
from jitbatch.cli._metrics import accuracy, mean_squared_error, pearson, spearman
from jitbatch.cli._settings import Settings
from jitbatch.cli._splits import limited, read_splits
from jitbatch.cli._task import Task, described, embedding, set_vectors
from jitbatch.data import make_listops, read_sick, read_sst
from jitbatch.data.listops import to_string
from jitbatch.models import ListOpsTreeLSTM, Sentiment, Similarity

# ListOps


@jitbatch
def predict_listops(model: Any, sample: Any) -> Any:
    return model.predict(sample.expression)


def listops(settings: Settings) -> Task:
    assert settings.train_size is not None
    assert settings.depth is not None
    sizes = [settings.train_size, 1000, 2000]
    try:
        splits = make_listops(settings.seed, sizes, settings.depth)
    except ValueError as error:  # there are not as many
        raise CommandError(f"{error}. Give a larger --depth or a smaller --train-size") from None
    train, dev, test = (limited(split, settings) for split in splits)
    examples = ", ".join(f"{to_string(sample.expression)} = {sample.value}" for sample in train[:2])
    return Task(
        description=f"ListOps: {len(train):,} expressions of depth 1 to {settings.depth}, for example {examples}",
        train=train,
        dev=dev,
        test=test,
        model=make_model(lambda: ListOpsTreeLSTM(settings.hidden, rngs=nnx.Rngs(settings.seed)), settings),
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
        settings, "", read_sick, lambda pair: (*tokens(pair.left), *tokens(pair.right)), lambda pair: pair[:2]
    )
    size, vectors = embedding(settings, words)
    model = make_model(lambda: Similarity(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
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
    words, (train, dev, test) = read_splits(
        settings, ".txt", read_sst, lambda sentence: jax.tree.leaves(sentence.tree), lambda sentence: [sentence.tree]
    )
    size, vectors = embedding(settings, words)
    model = make_model(lambda: Sentiment(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
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
