"""Tree-LSTMs and the models on top of them: batched as in the plain loop."""

import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop

from jitbatch.data.trees import Pair, Sentence, dependency_tree, score_distribution
from jitbatch.models import Sentiment, Similarity

TREES = [((1, 2), 3), (4, ((1, 2), (3, 4))), 5, ((0, 1), (2, (3, 4)))]
SENTENCES = [
    Sentence(tree, np.arange(nodes, dtype=np.int32) % 5) for tree, nodes in zip(TREES, (5, 9, 1, 9), strict=True)
]
HEADS = [[0], [2, 0, 2], [0, 1, 2, 3], [2, 0, 2, 2], [5, 1, 1, 5, 0]]
DEPENDENCIES = [dependency_tree([(i + j) % 6 for j in range(len(heads))], heads) for i, heads in enumerate(HEADS)]
PAIRS = [
    Pair(left, right, score_distribution(score))
    for left, right, score in zip(DEPENDENCIES, DEPENDENCIES[1:], (1.0, 2.5, 3.3, 5.0), strict=False)
]


@pytest.fixture(scope="module")
def sentiment():
    return Sentiment(6, 3, 4, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def similarity():
    return Similarity(6, 3, 4, 3, rngs=nnx.Rngs(0))


def test_sentiment_loss(sentiment):
    assert_batches_like_loop(sentiment, "loss", SENTENCES)


def test_sentiment_predicts(sentiment):
    assert_predicts_like_loop(sentiment, "predict", TREES)


def test_similarity_loss(similarity):
    assert_batches_like_loop(similarity, "loss", PAIRS)


def test_similarity_predicts(similarity):
    assert_predicts_like_loop(similarity, "predict", [p.left for p in PAIRS], [p.right for p in PAIRS])
