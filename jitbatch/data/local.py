"""This process's part of minibatches, for a program of several processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.util.errors import ArgumentError


def local(
    minibatches: Sequence[Any], *, seed: int | Sequence[int] | None = 0, process: int | None = None,
    processes: int | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Yields this process's part of each minibatch, in one order for all processes.

    The parts of a minibatch, in the order of processes, are the minibatch. They differ by at most one sample, and may
    be empty. All processes yield as many items, as steps of `jitbatch.jit(mesh=...)` need it.

    Args:
        minibatches: the minibatches of all processes. A minibatch is a list of samples, an array with one row per
            sample, or a tuple or dict of such: `(trees, labels)`.
        seed: of the order of the minibatches, the same in all processes; a sequence such as `[seed, epoch]` gives each
            epoch an order of its own. None keeps the order.
        process, processes: the number of this process, and how many there are; by default those of JAX.

    >>> from jitbatch.data import local
    >>> minibatches = [(["a", "b", "c"], [0, 1, 2]), (["d", "e"], [3, 4])]
    >>> list(local(minibatches, seed=None, process=0, processes=2))
    [(['a'], [0]), (['d'], [3])]
    >>> list(local(minibatches, seed=None, process=1, processes=2))
    [(['b', 'c'], [1, 2]), (['e'], [4])]
    """
    process = jax.process_index() if process is None else process
    processes = jax.process_count() if processes is None else processes
    order = np.arange(len(minibatches))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(minibatches))
    for batch_id in order.tolist():
        yield _part(minibatches[batch_id], process, processes)


def _part(minibatch: Any, process: int, processes: int) -> Any:
    if isinstance(minibatch, Mapping):
        return {name: _part(value, process, processes) for name, value in minibatch.items()}
    if type(minibatch) is tuple:
        parts = tuple(_part(value, process, processes) for value in minibatch)
        if len(set(map(len, minibatch))) > 1:
            told = ", ".join(str(len(value)) for value in minibatch)
            raise ArgumentError(f"a minibatch is a tuple of {told} rows: all of its parts have one row per sample")
        return parts
    count = len(minibatch)
    return minibatch[count * process // processes : count * (process + 1) // processes]
