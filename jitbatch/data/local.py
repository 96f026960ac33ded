"""This process's part of minibatches, for a program of several processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, keystr

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
            sample, or a tuple, named tuple, dict or other pytree of such, at any depth: `(trees, {"labels": labels})`.
            None stays None.
        seed: of the order of the minibatches, the same in all processes; a sequence such as `[seed, epoch]` gives each
            epoch an order of its own. None keeps the order.
        process, processes: the number of this process, and how many there are; by default those of JAX.

    Raises:
        ArgumentError: a part of a minibatch has no rows, or parts have different numbers of rows. It names them.

    >>> from jitbatch.data import local
    >>> minibatches = [(["a", "b", "c"], [0, 1, 2]), (["d", "e"], [3, 4])]
    >>> list(local(minibatches, seed=None, process=0, processes=2))
    [(['a'], [0]), (['d'], [3])]
    >>> list(local(minibatches, seed=None, process=1, processes=2))
    [(['b', 'c'], [1, 2]), (['e'], [4])]
    """
    if not isinstance(minibatches, Sequence):
        raise ArgumentError(
            f"minibatches is a {type(minibatches).__name__}, which has no length and no order: give a list of "
            "minibatches"
        )
    process = jax.process_index() if process is None else process
    processes = jax.process_count() if processes is None else processes
    if not 0 <= process < processes:
        raise ArgumentError(f"process={process} is none of {processes} processes, which are numbered from 0 on")
    return _parts(minibatches, seed, process, processes)


def _parts(minibatches: Sequence[Any], seed: int | Sequence[int] | None, process: int, processes: int) -> Iterator[Any]:
    order = np.arange(len(minibatches))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(minibatches))
    for batch_id in order.tolist():
        rows: dict[str, int] = {}
        part = _part(minibatches[batch_id], process, processes, (), rows)
        if len(set(rows.values())) > 1:
            told = ", ".join(f"{path or 'the list'} has {count}" for path, count in rows.items())
            raise ArgumentError(
                f"minibatch {batch_id} has parts of different lengths: {told}. Each has one row per sample"
            )
        yield part


def _part(value: Any, process: int, processes: int, path: tuple[Any, ...], rows: dict[str, int]) -> Any:
    """Returns this process's part of a value.

    Args:
        value: a minibatch, or a part of one.
        process, processes: as for `local`.
        path: the path of the value in the minibatch.
        rows: gets the number of rows at each path.
    """

    def at(key: Any, part: Any) -> Any:
        return _part(part, process, processes, (*path, key), rows)

    if isinstance(value, Mapping):
        return {name: at(DictKey(name), part) for name, part in value.items()}
    if isinstance(value, tuple):
        fields: Any = getattr(value, "_fields", None)
        if fields is None:
            return tuple(at(SequenceKey(index), part) for index, part in enumerate(value))
        return type(value)(*(at(GetAttrKey(name), part) for name, part in zip(fields, value, strict=True)))
    has_rows = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not has_rows and not (np.ndim(value) and hasattr(value, "__getitem__")):
        parts, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
        if treedef != jax.tree.structure(0):  # None, or a node that is registered
            return treedef.unflatten([at(way[0], part) for way, part in parts])
        raise ArgumentError(
            f"{'a minibatch' if not path else f'the part {keystr(path)} of a minibatch'} is {value!r}, which has no "
            "rows: a minibatch is a list of samples, an array with one row per sample, or a pytree of such. Pass other "
            "values to the step directly"
        )
    count = rows[keystr(path)] = len(value)
    return value[count * process // processes : count * (process + 1) // processes]
