"""What the figures of a model are compared with: methods that see no structure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

import jax
import numpy as np
import optax
from flax import nnx

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
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def fit(model: nnx.Sequential, optimizer: nnx.Optimizer, counts: np.ndarray, values: np.ndarray) -> None:
        def loss(model: nnx.Sequential) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(counts), values).mean()

        optimizer.update(model, nnx.grad(loss)(model))

    counts, values = _counts(train), np.array([sample.value for sample in train])
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = rng.integers(len(values), size=256)
        fit(model, optimizer, counts[chosen], values[chosen])
    found = np.argmax(model(_counts(test)), axis=-1)
    return float(np.mean(found == np.array([sample.value for sample in test])))


def _counts(samples: Sequence[ListOps]) -> np.ndarray:
    return np.array([np.bincount(list(tokens(s.expression)), minlength=len(SYMBOLS)) for s in samples], np.float32)
