"""Tree-GRUs: for trees whose nodes have a fixed number of children, and for any number."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Dependency, Tree
from jitbatch.models.tree_encoder import dependency_post_order, post_order


class BinaryTreeGRU(nnx.Module):
    """For trees with words as leaves; an inner node has two children, each with a reset gate of its own (Kokkinos and
    Potamianos, 2017).

    >>> from jitbatch.models import Sentiment
    >>> model = Sentiment(words=9, embedding=4, hidden=4, encoder=BinaryTreeGRU, rngs=nnx.Rngs(0))
    >>> model.predict.batch([((1, 2), 3), 4, (5, (6, (7, 8)))]).shape
    (3,)
    """

    def __init__(self, words: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.word = nnx.Linear(embedding, 2 * hidden, rngs=rngs)
        self.gates = nnx.Linear(2 * hidden, 3 * hidden, rngs=rngs)
        self.candidate = nnx.Linear(2 * hidden, hidden, rngs=rngs)

    @jitbatch
    def leaf(self, word: int) -> Array:
        z, u = jnp.split(self.word(self.embed(jnp.asarray(word))), 2)
        return (1 - nnx.sigmoid(z)) * jnp.tanh(u)

    @jitbatch
    def compose(self, left: Array, right: Array) -> Array:
        z, r_left, r_right = jnp.split(nnx.sigmoid(self.gates(jnp.concatenate([left, right]))), 3)
        kept = jnp.concatenate([r_left * left, r_right * right])
        return z * (left + right) + (1 - z) * jnp.tanh(self.candidate(kept))

    def outputs(self, tree: Tree) -> list[Array]:
        """The states of all nodes in post-order: the root's is the last."""
        return post_order(tree, self.leaf, self.compose)


class ChildSumTreeGRU(nnx.Module):
    """For trees with a word at each node and any number of children, whose order does not matter (Zhou et al., 2016).

    >>> from jitbatch.data.trees import dependency_tree
    >>> from jitbatch.models import Similarity
    >>> model = Similarity(words=9, embedding=4, hidden=4, encoder=ChildSumTreeGRU, rngs=nnx.Rngs(0))
    >>> trees = [dependency_tree([7, 8, 1], [2, 0, 2]), dependency_tree([3], [0])]
    >>> model.predict.batch(trees, trees[::-1]).shape
    (2,)
    """

    def __init__(self, words: int, embedding: int = 64, hidden: int = 64, *, rngs: nnx.Rngs):
        self.hidden = hidden
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.word = nnx.Linear(embedding, 3 * hidden, rngs=rngs)
        self.update = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.reset = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.candidate = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)

    @jitbatch
    def node(self, word: int, children: Sequence[Array]) -> Array:
        z, r, u = jnp.split(self.word(self.embed(jnp.asarray(word))), 3)
        summed = sum(children, jnp.zeros(self.hidden))
        kept = sum((nnx.sigmoid(r + self.reset(h)) * h for h in children), jnp.zeros(self.hidden))
        z = nnx.sigmoid(z + self.update(summed))
        return z * summed + (1 - z) * jnp.tanh(u + self.candidate(kept))

    def outputs(self, tree: Dependency) -> list[Array]:
        """The states of all nodes in post-order: the root's is the last."""
        return dependency_post_order(tree, self.node)
