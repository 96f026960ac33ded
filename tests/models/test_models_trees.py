"""Tree-LSTMs and the models on top of them: batched as in the plain loop."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch import jitbatch
from jitbatch.data.trees import Pair, Sentence, dependency_tree, score_distribution
from jitbatch.models import NaryTreeLSTM, Sentiment, Similarity

TREES = [((1, 2), 3), 5, (4, ((1, 2), 0))]
SENTENCES = [Sentence(tree, np.arange(nodes, dtype=np.int32) % 5) for tree, nodes in zip(TREES, (5, 1, 7), strict=True)]
HEADS = [[0], [2, 0, 2, 2], [0, 1, 2], [2, 0, 2]]
DEPENDENCIES = [dependency_tree([(i + j) % 6 for j in range(len(heads))], heads) for i, heads in enumerate(HEADS)]
PAIRS = [
    Pair(left, right, score_distribution(score))
    for left, right, score in zip(DEPENDENCIES, DEPENDENCIES[1:], (1.0, 2.5, 5.0), strict=False)
]


@pytest.fixture(scope="module")
def sentiment():
    return Sentiment(6, 3, 4, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def similarity():
    return Similarity(6, 3, 4, 3, rngs=nnx.Rngs(0))


@through_samples_and_plan
def test_sentiment_loss(sentiment, through):
    assert_batches_like_loop(sentiment, "loss", SENTENCES, through)


def test_sentiment_predicts(sentiment):
    assert_predicts_like_loop(sentiment, "predict", TREES)


def test_sentiment_loss_is_over_all_nodes(sentiment):
    (sample,) = [one for one in SENTENCES if one.tree == ((1, 2), 3)]
    nodes = [1, 2, (1, 2), 3, ((1, 2), 3)]
    scores = jnp.stack([sentiment.logits(node) for node in nodes])
    expected = sum(jnp.log(jnp.exp(row).sum()) - row[label] for row, label in zip(scores, sample.labels, strict=True))
    np.testing.assert_allclose(sentiment.loss(sample), expected, rtol=1e-5)


@through_samples_and_plan
def test_similarity_loss(similarity, through):
    assert_batches_like_loop(similarity, "loss", PAIRS, through)


def test_similarity_predicts(similarity):
    assert_predicts_like_loop(similarity, "predict", [p.left for p in PAIRS], [p.right for p in PAIRS])


def test_similarity_loss_is_zero_for_the_target(similarity):
    left, right, _ = PAIRS[0]
    predicted = jnp.exp(similarity.log_probabilities(*similarity.roots(left, right)))
    np.testing.assert_allclose(similarity.loss(Pair(left, right, predicted)), 0, atol=1e-6)
    np.testing.assert_allclose(similarity.predict(left, right), predicted @ jnp.arange(1.0, 6), rtol=1e-5)


class Ternary(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = NaryTreeLSTM(6, 3, 4, arity=3, rngs=rngs)

    @jitbatch
    def root(self, tree):
        return self.encoder(tree).h


def test_nodes_with_three_children():
    assert_predicts_like_loop(Ternary(nnx.Rngs(0)), "root", [(1, 2, 3), 4, ((1, 2, 3), 4, (0, 0, 5))])
