"""The Set Transformer (Lee et al., 2019): attention over sets of any number of elements, in time linear in them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from jitbatch import jitbatch, segment
from jitbatch.data.sets import NumberSet


class Attention(nnx.Module):
    """Multi-head attention, then a layer for each query, both added to it and normalised."""

    def __init__(self, hidden: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.query = nnx.Linear(hidden, hidden, rngs=rngs)
        self.key_value = nnx.Linear(hidden, 2 * hidden, rngs=rngs)
        self.mixed = nnx.LayerNorm(hidden, rngs=rngs)
        self.layer = nnx.Linear(hidden, hidden, rngs=rngs)
        self.norm = nnx.LayerNorm(hidden, rngs=rngs)

    def split(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.heads, -1)

    @jitbatch
    def scored(self, queries: Array, x: Array) -> tuple[Array, Array]:
        """Scores [queries, heads] of an element, and its value for each of them."""
        key, value = map(self.split, jnp.split(self.key_value(x), 2))
        query = self.split(self.query(queries))
        scores = jnp.einsum("qhd,hd->qh", query, key) / key.shape[-1] ** 0.5
        return scores, jnp.broadcast_to(value, query.shape)

    def finish(self, queries: Array, attended: Array) -> Array:
        h = self.mixed(queries + attended.reshape(queries.shape))
        return self.norm(h + nnx.relu(self.layer(h)))

    def over(self, queries: Array, xs: Sequence[Array]) -> Array:
        """Some fixed queries [queries, hidden] attend to any number of elements."""
        scores, values = zip(*(self.scored(queries, x) for x in xs), strict=True)
        return self.finish(queries, segment.attend_scores(scores, values))

    @jitbatch
    def to(self, x: Array, others: Array) -> Array:
        """An element attends to a fixed number of others [others, hidden]."""
        keys, values = map(self.split, jnp.split(self.key_value(others), 2, axis=-1))
        query = self.split(self.query(x))
        weights = jax.nn.softmax(jnp.einsum("hd,ohd->oh", query, keys) / query.shape[-1] ** 0.5, axis=0)
        return self.finish(x, jnp.einsum("oh,ohd->hd", weights, values))


class InducedAttention(nnx.Module):
    """Elements attend to each other by way of a few points, which attend to all elements first."""

    def __init__(self, hidden: int, heads: int, points: int, *, rngs: nnx.Rngs):
        self.points = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), (points, hidden)))
        self.inward = Attention(hidden, heads, rngs=rngs)
        self.outward = Attention(hidden, heads, rngs=rngs)

    def __call__(self, xs: Sequence[Array]) -> list[Array]:
        summary = self.inward.over(self.points[...], xs)
        return [self.outward.to(x, summary) for x in xs]


class SetTransformer(nnx.Module):
    """Predicts a number from a set (Lee et al., 2019), with induced points.

    >>> from jitbatch.data import make_maxima
    >>> (samples,) = make_maxima(0, [3])
    >>> model = SetTransformer(features=1, hidden=4, heads=2, points=2, rngs=nnx.Rngs(0))
    >>> model.loss.batch(samples).shape
    (3,)
    """

    def __init__(
        self, features: int, hidden: int = 64, heads: int = 4, points: int = 4, blocks: int = 2, *, rngs: nnx.Rngs
    ):
        self.embed = nnx.Linear(features, hidden, rngs=rngs)
        self.blocks = nnx.List([InducedAttention(hidden, heads, points, rngs=rngs) for _ in range(blocks)])
        self.seed = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), (1, hidden)))
        self.pool = Attention(hidden, heads, rngs=rngs)
        self.out = nnx.Linear(hidden, 1, rngs=rngs)

    @jitbatch
    def element(self, x: np.ndarray) -> Array:
        return self.embed(jnp.asarray(x))

    @jitbatch
    def predict(self, elements: np.ndarray) -> Array:
        """The predicted number of a set."""
        xs = [self.element(x) for x in elements]
        for block in self.blocks:
            xs = block(xs)
        return self.out(self.pool.over(self.seed[...], xs)[0])[0]

    @jitbatch
    def loss(self, sample: NumberSet) -> Array:
        """The squared error of the prediction."""
        return (self.predict(sample.elements) - sample.target) ** 2
