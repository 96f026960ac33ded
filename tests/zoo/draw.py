"""Drawing parameters and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from zoo.workloads import INPUT, VOCAB, Params, Tree


def weights(**shapes: tuple[int, ...]) -> Callable[[Array], Params]:
    """Draws a dict of normal arrays of the given shapes."""

    def draw(key: Array) -> Params:
        keys = jax.random.split(key, len(shapes))
        return {name: 0.5 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    return draw


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def token(rng: np.random.Generator) -> int:
    return int(rng.integers(VOCAB))


def random_tree(rng: np.random.Generator, leaves: int, make_leaf: Callable[[], Any]) -> Tree:
    """A random binary tree of nested pairs."""
    if leaves == 1:
        return make_leaf()
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left, make_leaf), random_tree(rng, leaves - left, make_leaf)


def token_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Binary trees of token ids with 1 to 5 leaves; the first is a single leaf."""
    return [random_tree(rng, 1 + i % 5, lambda: token(rng)) for i in range(n)]


def vector_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Binary trees of input vectors with 1 to 5 leaves."""
    return [random_tree(rng, 1 + i % 5, lambda: normal(rng, INPUT)) for i in range(n)]


def sequences(rng: np.random.Generator, n: int) -> list[Array]:
    """Input rows, 1 to 5 of them."""
    return [normal(rng, 1 + (2 * i) % 5, INPUT) for i in range(n)]


def long_sequences(rng: np.random.Generator, n: int) -> list[Array]:
    """Input rows, 3 to 5 of them."""
    return [normal(rng, 3 + i % 3, INPUT) for i in range(n)]


def token_sequences(rng: np.random.Generator, n: int) -> list[Array]:
    return [jnp.asarray(rng.integers(VOCAB, size=1 + (2 * i) % 5), jnp.int32) for i in range(n)]
