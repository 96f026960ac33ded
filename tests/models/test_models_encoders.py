"""Encoders of trees under the models of sentiment and similarity: batched as in the plain loop, in a few types."""

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch import Static
from jitbatch.data.trees import Pair, Sentence, dependency_tree, score_distribution
from jitbatch.models import MVRNN, BinaryTreeGRU, ChildSumTreeGRU, Sentiment, Similarity, TwoTypeTreeLSTM

TREES = [((1, 2), 3), 5, (4, ((1, 2), 0))]
TYPED = [(Static(0), (Static(1), 1, 2), 3), 5, (Static(1), 4, (Static(0), (Static(1), 1, 2), 0))]
NODES = (5, 1, 7)
HEADS = [[0], [2, 0, 2, 2], [0, 1, 2], [2, 0, 2]]


def sentences(trees: list[Any]) -> list[Sentence]:
    return [Sentence(tree, np.arange(count, dtype=np.int32) % 5) for tree, count in zip(trees, NODES, strict=True)]


def pairs(heads: list[list[int]]) -> list[Pair]:
    trees = [dependency_tree([(i + j) % 6 for j in range(len(one))], one) for i, one in enumerate(heads)]
    return [Pair(left, right, score_distribution(2.5)) for left, right in pairwise(trees)]


def make(model: type, encoder: type) -> nnx.Module:
    return model(6, 3, 4, encoder=encoder, rngs=nnx.Rngs(0))


CASES = {
    "binary gru": (make(Sentiment, BinaryTreeGRU), sentences(TREES)),
    "mv-rnn": (make(Sentiment, MVRNN), sentences(TREES)),
    "two types": (make(Sentiment, TwoTypeTreeLSTM), sentences(TYPED)),
    "child-sum gru": (make(Similarity, ChildSumTreeGRU), pairs(HEADS)),
}


@through_samples_and_plan
@pytest.mark.parametrize("name", CASES)
def test_loss(name: str, through: str) -> None:
    assert_batches_like_loop(CASES[name][0], "loss", CASES[name][1], through)


@pytest.mark.parametrize("name", ["binary gru", pytest.param("mv-rnn", marks=pytest.mark.slow), "two types"])
def test_predicts(name: str) -> None:
    assert_predicts_like_loop(CASES[name][0], "predict", [sample.tree for sample in CASES[name][1]])


def chain(depth: int, kinds: bool = False) -> Any:
    tree: Any = 0
    for level in range(depth):
        tree = (Static(level % 2), tree, 1) if kinds else (tree, 1)
    return tree


@pytest.mark.parametrize(("name", "types"), [("binary gru", 4), ("mv-rnn", 4), ("two types", 5)])
def test_trees_of_any_size_are_a_few_types(name: str, types: int) -> None:
    """A leaf, a node of each kind, a loss and the sum of losses; as many steps as the deepest tree needs."""
    model: Any = CASES[name][0]
    for depth in (4, 20):
        trees = [chain(d, name == "two types") for d in range(1, depth + 1)]
        samples = [Sentence(tree, np.zeros(2 * d + 1, np.int32)) for d, tree in enumerate(trees, 1)]
        plan = model.loss.plan(samples, like=None)
        assert plan.summary.types == types
        assert plan.summary.steps == plan.summary.bound == depth + 3


def test_any_number_of_children_is_the_same_few_types() -> None:
    model: Any = CASES["child-sum gru"][0]
    few, many = ([[0], [0, *[1] * n], [0, 1, *[2] * n]] for n in (2, 9))
    assert model.loss.plan(pairs(few), like=None).summary.types == model.loss.plan(pairs(many)).summary.types == 7


def test_a_word_of_an_mv_rnn_changes_its_neighbour() -> None:
    """By the equations of the paper, with the words' parameters."""
    encoder: Any = make(Sentiment, MVRNN).encoder  # type: ignore[attr-defined]
    left, right = encoder.leaf(1), encoder.leaf(2)
    joined = encoder.compose(left, right)
    weights, bias = encoder.join_vectors.kernel[...], encoder.join_vectors.bias[...]
    changed = jnp.concatenate([right.matrix @ left.vector, left.matrix @ right.vector])
    np.testing.assert_allclose(joined.vector, jnp.tanh(changed @ weights + bias), rtol=1e-5)
    np.testing.assert_allclose(joined.matrix, (left.matrix + right.matrix) / 2, rtol=1e-5)  # as at the beginning
    np.testing.assert_array_equal(np.linalg.matrix_rank(left.matrix - jnp.eye(4)), 3)


def test_the_kind_of_a_node_selects_its_weights() -> None:
    encoder: Any = make(Sentiment, TwoTypeTreeLSTM).encoder  # type: ignore[attr-defined]
    first, second = (encoder.outputs((Static(kind), 1, 2))[-1] for kind in (0, 1))
    assert np.abs(first - second).max() > 1e-3
    encoder.other_gates.kernel[...] = encoder.child_gates.kernel[...]
    np.testing.assert_allclose(encoder.outputs((Static(1), 1, 2))[-1], first, rtol=1e-5)


def test_the_order_of_children_does_not_matter_to_a_child_sum() -> None:
    encoder: Any = make(Similarity, ChildSumTreeGRU).encoder  # type: ignore[attr-defined]
    one, other = (dependency_tree([0, *words], [0, 1, 1, 1]) for words in ([1, 2, 3], [3, 1, 2]))
    np.testing.assert_allclose(encoder.outputs(one)[-1], encoder.outputs(other)[-1], rtol=1e-5)
