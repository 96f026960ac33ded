"""One jitted program for each shape of tree, compiled in advance, run sample by sample."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Call: TypeAlias = tuple[Any, np.ndarray, Any]  # the tree's structure, its words, the rest of the sample


def calls_of(samples: Sequence[Any]) -> list[Call]:
    """A tree's words as one array, since JAX takes some microseconds for each argument."""
    calls = []
    for sample in samples:
        tokens, structure = jax.tree.flatten(sample.tree)
        calls.append((structure, np.array(tokens, np.int32), sample._replace(tree=None)))
    return calls


def jitted_loop(function: Callable[[Any, Any], Any]) -> Callable[[Any, Sequence[Call]], Any]:
    """The sum over samples of a function of parameters and a sample."""

    @partial(jax.jit, static_argnums=1)
    def program(params: Any, structure: Any, tokens: jax.Array, sample: Any) -> Any:
        return function(params, sample._replace(tree=jax.tree.unflatten(structure, list(tokens))))

    @partial(jax.jit, donate_argnums=0)
    def add(total: Any, more: Any) -> Any:
        return jax.tree.map(jnp.add, total, more)

    def run(params: Any, calls: Sequence[Call]) -> Any:
        total = program(params, *calls[0])
        for call in calls[1:]:
            total = add(total, program(params, *call))
        return total

    return run
