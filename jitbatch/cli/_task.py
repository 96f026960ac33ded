"""A `Task`: data, a model, its loss for one sample, and its metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jitbatch.cli._errors import CommandError
from jitbatch.cli._files import reason
from jitbatch.cli._settings import Settings
from jitbatch.data import Vocabulary, read_vectors


@runtime_checkable
class Decorated(Protocol):
    """A decorated function of a model and one sample."""

    def __call__(self, model: Any, sample: Any, /) -> Any: ...
    def batch(self, *args: Any) -> Any: ...


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        description: of the data, for people.
        train, dev, test: samples.
        model: the module, initialised.
        loss: of the model and one sample.
        predict: of the model and one sample; or, where what is computed depends on what has been predicted, a plain
            function of the model and a minibatch.
        metrics: of predictions and samples, by name; the first one says which epoch is best, larger is better.
        baselines: what simpler methods achieve on the test data, by name, in terms of the first metric.
        differentiable: the inputs of samples that `losses` differentiates.
        losses: of the model and a minibatch in the body of a step: what is minimised in place of `loss`.
    """

    description: str
    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]
    model: nnx.Module
    loss: Decorated
    predict: Decorated | Callable[[Any, Sequence[Any]], list[Any]]
    metrics: Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
    baselines: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    differentiable: str | None = None
    losses: Callable[[Any, Any], jax.Array] | None = None


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
    except OSError as error:
        raise CommandError(f"the vectors cannot be read: {reason(error)}. Give another file by --vectors") from None
    except ValueError as error:
        raise CommandError(
            f"the vectors cannot be read: {error}. Mend the file, or give another by --vectors"
        ) from None
    if not found:
        raise CommandError(f"{settings.vectors} has none of the {len(words):,} words. Give another file by --vectors")
    return table.shape[1], table


def set_vectors(embed: nnx.Embed, vectors: np.ndarray | None) -> None:
    if vectors is not None:
        embed.embedding[...] = jnp.asarray(vectors)
