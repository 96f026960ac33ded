"""Matrix-vector recursive networks (Socher et al., 2012): a word has a meaning, and changes that of its neighbour."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch
from jitbatch.data.trees import Tree
from jitbatch.models.tree_encoder import post_order


class Meaning(NamedTuple):
    """The meaning of a phrase, and the matrix by which it changes the meaning of another."""

    vector: Array
    matrix: Array


class MVRNN(nnx.Module):
    """A matrix-vector recursive network (Socher et al., 2012) for binary trees with words as leaves.

    The matrix of a word is a diagonal matrix plus a matrix of low rank.

    >>> from jitbatch.models import Sentiment
    >>> model = Sentiment(words=9, embedding=4, hidden=4, encoder=MVRNN, rngs=nnx.Rngs(0))
    >>> model.predict.batch([((1, 2), 3), 4, (5, (6, (7, 8)))]).shape
    (3,)
    """

    def __init__(self, words: int, embedding: int = 64, hidden: int = 64, rank: int = 3, *, rngs: nnx.Rngs):
        self.hidden = hidden
        self.rank = rank
        self.embed = nnx.Embed(words, embedding, rngs=rngs)
        self.word_vector = nnx.Linear(embedding, hidden, rngs=rngs)
        small = nnx.initializers.normal(0.1)
        self.low_rank = nnx.Embed(words, 2 * rank * hidden, embedding_init=small, rngs=rngs)
        self.diagonal = nnx.Embed(words, hidden, embedding_init=nnx.initializers.ones, rngs=rngs)
        self.join_vectors = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.join_matrices = nnx.Param(jnp.concatenate([jnp.eye(hidden) / 2] * 2, axis=1))

    @jitbatch
    def leaf(self, word: int) -> Meaning:
        token = jnp.asarray(word)
        left, right = self.low_rank(token).reshape(2, self.hidden, self.rank)
        return Meaning(jnp.tanh(self.word_vector(self.embed(token))), left @ right.T + jnp.diag(self.diagonal(token)))

    @jitbatch
    def compose(self, left: Meaning, right: Meaning) -> Meaning:
        changed = jnp.concatenate([right.matrix @ left.vector, left.matrix @ right.vector])
        matrix = self.join_matrices[...] @ jnp.concatenate([left.matrix, right.matrix])
        return Meaning(jnp.tanh(self.join_vectors(changed)), matrix)

    def outputs(self, tree: Tree) -> list[Array]:
        """The vectors of all nodes in post-order: the root's is the last."""
        return [meaning.vector for meaning in post_order(tree, self.leaf, self.compose)]
