"""A Tree-LSTM with two kinds of inner nodes: the benchmark TreeLSTM-2Type of ED-Batch (Chen et al., 2023)."""

import jax.numpy as jnp
from flax import nnx

from jitbatch import jitbatch
from jitbatch.data.trees import TypedTree
from jitbatch.models.tree_lstm import NaryTreeLSTM, State, composed


class TwoTypeTreeLSTM(NaryTreeLSTM):
    """A Tree-LSTM for binary trees with words as leaves. The kind of an inner node, a `Static`, selects its weights.

    >>> from jitbatch import Static
    >>> from jitbatch.models import Sentiment
    >>> model = Sentiment(words=9, embedding=4, hidden=4, encoder=TwoTypeTreeLSTM, rngs=nnx.Rngs(0))
    >>> model.predict.batch([(Static(0), (Static(1), 1, 2), 3), 4, (Static(1), 5, 6)]).shape
    (3,)
    """

    def __init__(self, words: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        super().__init__(words, embedding, hidden, rngs=rngs)
        self.other_gates = nnx.Linear(2 * hidden, 5 * hidden, rngs=rngs)

    @jitbatch
    def compose_other(self, left: State, right: State) -> State:
        return composed(self.other_gates(jnp.concatenate([left.h, right.h])), left, right)

    def states(self, tree: TypedTree) -> list[State]:
        """The states of all nodes in post-order: the root's is the last."""
        if not isinstance(tree, tuple):
            return [self.leaf(tree)]
        kind, *children = tree
        left, right = map(self.states, children)
        compose = self.compose_other if kind.value else self.compose
        return [*left, *right, compose(left[-1], right[-1])]
