"""How good predictions are."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

Tree: TypeAlias = tuple[list[int], list[int]]
"""The head and the relation of each word of a sentence."""


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """
    >>> accuracy([1, 2, 3, 4], [1, 2, 0, 4])
    0.75
    """
    return float(np.mean(np.asarray(predictions) == np.asarray(labels)))


def item_accuracy(predictions: Iterable[ArrayLike], labels: Iterable[ArrayLike]) -> float:
    """The part of all items of all samples, such as words of sentences, that is right.

    >>> item_accuracy([[1, 2], [3]], [[1, 2], [0]])
    0.6666666666666666
    """
    return accuracy(np.concatenate([*map(np.asarray, predictions)]), np.concatenate([*map(np.asarray, labels)]))


def attachment_scores(found: Sequence[Tree], right: Sequence[Tree]) -> dict[str, float]:
    """The parts of all words that have the right head (`uas`), and the right head and relation (`las`).

    >>> attachment_scores([([2, 0, 1], [5, 0, 6])], [([2, 0, 2], [7, 0, 6])])
    {'uas': 0.6666666666666666, 'las': 0.3333333333333333}
    """
    (heads, relations), (right_heads, right_relations) = (
        [np.concatenate(words) for words in zip(*trees, strict=True)] for trees in (found, right)
    )
    attached = heads == right_heads
    return {"uas": float(np.mean(attached)), "las": float(np.mean(attached & (relations == right_relations)))}


def pearson(predictions: ArrayLike, scores: ArrayLike) -> float:
    """The coefficient of linear correlation; 0 where one of the two does not vary.

    >>> round(pearson([1, 2, 3], [2, 4, 6]), 6), pearson([1, 1], [2, 3])
    (1.0, 0.0)
    """
    x, y = (
        np.asarray(values, np.float64) - np.mean(np.asarray(values, np.float64)) for values in (predictions, scores)
    )
    scale = np.sqrt(np.sum(x * x) * np.sum(y * y))
    return float(np.sum(x * y) / scale) if scale > 0 else 0.0


def spearman(predictions: ArrayLike, scores: ArrayLike) -> float:
    """The correlation of ranks; equal values share the mean of their ranks.

    >>> round(spearman([1, 10, 100], [1, 2, 3]), 6), round(spearman([1, 1, 2], [5, 6, 4]), 6)
    (1.0, -0.866025)
    """
    return pearson(_ranks(predictions), _ranks(scores))


def _ranks(values: ArrayLike) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def mean_absolute_error(predictions: ArrayLike, values: ArrayLike) -> float:
    """
    >>> mean_absolute_error([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return float(np.mean(np.abs(np.asarray(predictions, np.float64) - np.asarray(values, np.float64))))


def mean_squared_error(predictions: ArrayLike, scores: ArrayLike) -> float:
    """
    >>> mean_squared_error([1.0, 2.0], [1.0, 4.0])
    2.0
    """
    return float(np.mean(np.square(np.asarray(predictions, np.float64) - np.asarray(scores, np.float64))))
