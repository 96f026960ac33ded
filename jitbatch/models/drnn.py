"""Doubly recurrent networks (DRNN; Alvarez-Melis and Jaakkola, 2017): trees that are generated top-down."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import jitbatch, value


class DRNN(nnx.Module):
    """A doubly recurrent network: generates a tree from a vector, each node from its parent and its previous sibling.

    >>> import jax.numpy as jnp
    >>> model = DRNN(5, hidden=4, rngs=nnx.Rngs(0))
    >>> run = model.generate.rollout([jnp.ones(4), jnp.zeros(4)])
    >>> run.outputs.shape
    (2,)
    """

    def __init__(self, labels: int, hidden: int = 64, deepest: int = 4, widest: int = 4, *, rngs: nnx.Rngs):
        self.deepest, self.widest = deepest, widest
        self.embed = nnx.Embed(labels, hidden, rngs=rngs)
        self.from_parent = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.from_sibling = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.join = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.label = nnx.Linear(hidden, labels, rngs=rngs)
        self.topology = nnx.Linear(hidden, 2, rngs=rngs)
        self.first_sibling = nnx.Param(jnp.zeros(hidden))

    @jitbatch
    def predict(self, above: Array, beside: Array) -> tuple[Array, Array, Array]:
        """The label of a node, whether it has children and a next sibling, and the log-probability of all of this."""
        state = jnp.tanh(self.join(jnp.concatenate([above, beside])))
        labels, topology = self.label(state), self.topology(state)
        return (
            labels.argmax(),
            topology > 0,
            jax.nn.log_softmax(labels).max() + jax.nn.log_sigmoid(jnp.abs(topology)).sum(),
        )

    @jitbatch
    def below(self, above: Array, label: int) -> Array:
        """The state that the children of a node begin with."""
        return jnp.tanh(self.from_parent(jnp.concatenate([above, self.embed(jnp.asarray(label))])))

    @jitbatch
    def next(self, beside: Array, label: int) -> Array:
        """The state that the next sibling of a node begins with."""
        return jnp.tanh(self.from_sibling(jnp.concatenate([beside, self.embed(jnp.asarray(label))])))

    async def _children(self, above: Array, depth: int) -> tuple[list[Any], Array]:
        """The trees below a node, and the sum of their log-probabilities."""
        trees, total = [], jnp.zeros(())
        beside: Array = self.first_sibling[...]
        for _ in range(self.widest):
            label, topology, likely = self.predict(above, beside)
            found, (has_children, has_next) = await value((label, topology))
            total = total + likely
            children: list[Any] = []
            if has_children and depth < self.deepest:
                children, more = await self._children(self.below(above, found), depth + 1)
                total = total + more
            trees.append((found, children))
            if not has_next:
                break
            beside = self.next(beside, found)
        return trees, total

    @jitbatch
    async def generate(self, root: Array) -> Array:
        """The log-probability of the trees that are generated from a vector. Its decisions are the trees."""
        return (await self._children(root, 1))[1]

    async def trees(self, root: Array) -> list[Any]:
        """The trees themselves, as `(label, children)` pairs, of one vector."""
        return (await self._children(root, 1))[0]
