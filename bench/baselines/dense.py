"""Nothing but matrix products: what a step cannot be faster than."""

from collections.abc import Callable, Sequence
from typing import Any

import jax


def dense(shapes: Sequence[tuple[int, int, int]], training: bool) -> Callable[[], Any]:
    """For each (rows, inputs, outputs) a product; for training also the two products of its backward pass."""
    keys = jax.random.split(jax.random.key(0), 2 * len(shapes))
    xs = [jax.random.normal(key, (rows, n)) for key, (rows, n, _) in zip(keys[::2], shapes, strict=True)]
    ws = [jax.random.normal(key, (n, m)) for key, (_, n, m) in zip(keys[1::2], shapes, strict=True)]

    @jax.jit
    def products(xs: list[jax.Array], ws: list[jax.Array]) -> Any:
        ys = [x @ w for x, w in zip(xs, ws, strict=True)]
        if not training:
            return ys
        return [(y @ w.T, x.T @ y) for x, w, y in zip(xs, ws, ys, strict=True)]

    return lambda: products(xs, ws)
