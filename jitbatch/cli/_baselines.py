"""Baselines for the figures of a model: methods that see no structure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jitbatch.data import Molecule
from jitbatch.data.listops import SYMBOLS, ListOps, tokens


def majority(train: Sequence[Hashable], test: Sequence[Hashable]) -> float:
    """The accuracy of always giving the most frequent label of the training data.

    >>> majority("aab", "abca")
    0.5
    """
    ((most_frequent, _),) = Counter(train).most_common(1)
    return sum(label == most_frequent for label in test) / len(test)


def most_frequent(train: Iterable[tuple[Hashable, Hashable]], test: Sequence[tuple[Hashable, Hashable]]) -> float:
    """The accuracy of giving each item the label that it has most often in the training data.

    An item that is not in the training data gets the label that is the most frequent of all.

    >>> most_frequent([("saw", "VERB"), ("saw", "NOUN"), ("saw", "VERB"), ("a", "DET")], [("saw", "VERB"), ("a", "X")])
    0.5
    """
    labels: defaultdict[Hashable, Counter[Hashable]] = defaultdict(Counter)
    overall: Counter[Hashable] = Counter()
    for item, label in train:
        labels[item][label] += 1
        overall[label] += 1
    usual = {item: counts.most_common(1)[0][0] for item, counts in labels.items()}
    otherwise = overall.most_common(1)[0][0]
    return sum(label == usual.get(item, otherwise) for item, label in test) / len(test)


def bag_of_symbols(train: Sequence[ListOps], test: Sequence[ListOps], seed: int, steps: int = 3000) -> float:
    """The accuracy of a perceptron with one hidden layer that sees how often each symbol occurs, but not where."""
    rngs = nnx.Rngs(seed)
    model = nnx.Sequential(nnx.Linear(len(SYMBOLS), 128, rngs=rngs), nnx.relu, nnx.Linear(128, 10, rngs=rngs))

    def features(samples: Sequence[ListOps]) -> np.ndarray:
        return _counts([list(tokens(sample.expression)) for sample in samples], len(SYMBOLS))

    def values(samples: Sequence[ListOps]) -> np.ndarray:
        return np.array([sample.value for sample in samples])

    _fit(model, features(train), values(train), seed, steps, optax.adam(3e-3))
    return _accuracy(model, features(test), values(test))


def bag_of_items(
    train: Sequence[tuple[Sequence[int], int]],
    dev: Sequence[tuple[Sequence[int], int]],
    test: Sequence[tuple[Sequence[int], int]],
    seed: int,
    steps: int = 500,
) -> float:
    """The accuracy of a linear model of how often each item occurs in a sample, but not where.

    Counts enter as log(1 + count). Of several weight decays, the one that is best on the development data is taken.

    Args:
        train, dev, test: for each sample the numbers of its items, and its label.
    """
    items = 1 + max(max(numbers) for numbers, _ in train)
    labels = 1 + max(label for _, label in train)
    bags = [_counts([[n for n in numbers if n < items] for numbers, _ in split], items) for split in (train, dev, test)]
    answers = [np.array([label for _, label in split]) for split in (train, dev, test)]
    features = [np.log1p(bag) for bag in bags]

    def achieved(weight_decay: float) -> tuple[float, float]:
        model = nnx.Linear(items, labels, rngs=nnx.Rngs(seed))
        _fit(model, features[0], answers[0], seed, steps, optax.adamw(1e-2, weight_decay=weight_decay))
        on_dev, on_test = (_accuracy(model, features[i], answers[i]) for i in (1, 2))
        return on_dev, on_test

    return max(map(achieved, (0.01, 0.1, 1.0)))[1]


def composition(samples: Sequence[Molecule], elements: int) -> np.ndarray:
    """An energy for each element: those whose sums over atoms are nearest to the energies of some molecules.

    >>> from jitbatch import Static
    >>> water = Molecule(np.array([1, 0, 0]), np.zeros((3, 3)), Static(()), 10.0)
    >>> hydrogen = Molecule(np.array([0, 0]), np.zeros((2, 3)), Static(()), 4.0)
    >>> composition([water, hydrogen], 2).round(3).tolist()
    [2.0, 6.0]
    """
    energies = np.array([sample.energy for sample in samples])
    return np.linalg.lstsq(_counts([sample.species for sample in samples], elements), energies, rcond=None)[0]


def _fit(
    model: nnx.Module,
    features: np.ndarray,
    labels: np.ndarray,
    seed: int,
    steps: int,
    rule: optax.GradientTransformation,
) -> None:
    """Train a classifier on minibatches of 256 samples."""
    optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)
    definition, state = nnx.split((model, optimizer))
    minibatches = np.random.default_rng(seed).integers(len(labels), size=(steps, 256))

    @jax.jit
    def fitted(state: Any, features: jax.Array, labels: jax.Array, minibatches: jax.Array) -> Any:
        def update(state: Any, chosen: jax.Array) -> tuple[Any, None]:
            model, optimizer = nnx.merge(definition, state)

            def loss(model: Any) -> jax.Array:
                found = model(features[chosen])
                return optax.softmax_cross_entropy_with_integer_labels(found, labels[chosen]).mean()

            optimizer.update(model, nnx.grad(loss)(model))
            return nnx.state((model, optimizer)), None

        return jax.lax.scan(update, state, minibatches)[0]

    nnx.update((model, optimizer), fitted(state, features, labels, minibatches))


def _accuracy(model: Any, features: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(model(features), axis=-1) == labels))


def _counts(samples: Sequence[Sequence[int] | np.ndarray], items: int) -> np.ndarray:
    return np.array([np.bincount(numbers, minlength=items) for numbers in samples], np.float32)
