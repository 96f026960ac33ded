"""Outputs that differ in how many items a sample has."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.ir.tables import Interned
from jitbatch.util import compat
from jitbatch.util.errors import OutputError
from jitbatch.util.headroom import headroom
from jitbatch.util.rounding import round_up


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Ragged:
    """The items of all samples as flat rows: what `.batch` returns for `out="ragged"`.

    The outermost list or tuple of a sample's result holds its items, and so do those of the same type that are nested
    in it (trees of scores). Anything else in there is an item: an array, a dict, a tuple in a list. Items of all
    samples have one structure and equal shapes; a sample may have none.

    It is a pytree of arrays of rounded sizes, padded at the end, so that a program that reads it does not depend on how
    many items the samples have. Padding repeats the last item, and is to be left out by `mask`. Inside `jax.vmap` or
    `jax.grad` it is used as anywhere else.

    Attributes:
        rows: an item whose leaves have an axis of rows in front: for each sample in turn its items, in the order of
            `jax.tree.leaves`.
        sample: int32 [rows]; the sample that each row is of.
        position: int32 [rows]; which of the sample's items it is.
        mask: bool [rows]; False for padding.
        outline: int32 [samples]; how each sample's result nests its items, as a number in `outlines`.
        outlines: all nestings that the function has returned. It is the same for all batches.

    >>> import jax, jax.numpy as jnp
    >>> from jitbatch import jitbatch
    >>> @jitbatch(out="ragged")
    ... def halves(scale, xs):
    ...     return [{"half": scale * x / 2} for x in xs]
    >>> out = halves.batch(2.0, halves.plan(2.0, [(1.0, 2.0), (), (3.0, 4.0, 5.0)]))
    >>> out.rows["half"].tolist(), out.mask.tolist()
    ([1.0, 2.0, 3.0, 4.0, 5.0, 5.0], [True, True, True, True, True, False])
    >>> out.sample.tolist(), out.position.tolist()
    ([0, 0, 2, 2, 2, 2], [0, 1, 0, 1, 2, 2])
    >>> out.sum()["half"].tolist()
    [3.0, 0.0, 12.0]
    >>> [len(items) for items in out.to_list()]
    [2, 0, 3]
    """

    rows: Any
    sample: Any
    position: Any
    mask: Any
    outline: Any
    outlines: Interned[Any] = field(metadata={"static": True}, repr=False)

    def sum(self) -> Any:
        """For each sample the sum of its items: an item whose leaves have an axis of samples in front."""

        def total(leaf: Any) -> Any:
            mask = jnp.expand_dims(self.mask, tuple(range(1, leaf.ndim)))
            return jax.ops.segment_sum(jnp.where(mask, leaf, 0), self.sample, self.outline.shape[0])

        return jax.tree.map(total, self.rows)

    def to_list(self) -> list[Any]:
        """The results of the samples, each as the function of one sample returns it. Not for use inside `jax.jit`."""
        if compat.is_tracer(self.outline):
            raise OutputError(
                "how many items a sample has is not known inside jax.jit or jax.vmap: call to_list outside, or use "
                "rows, sample, position and mask"
            )
        leaves, item = jax.tree.flatten(self.rows)
        items = map(item.unflatten, zip(*leaves, strict=True))
        outlines = [self.outlines[number] for number in np.asarray(self.outline)]
        return [outline.unflatten(itertools.islice(items, outline.num_leaves)) for outline in outlines]


def ragged_outputs(
    graphs: Sequence[Any], rows: np.ndarray, leaves: int, least: int, headroom_for: int = 0
) -> tuple[tuple[np.ndarray, ...], Ragged]:
    """The rows of a batch's items, padded: for each leaf of an item int32 [rows]; and all else that a `Ragged` has.

    Args:
        graphs: one for each sample, or whatever else has `items` and `tables`.
        rows: the rows of all outputs.
        leaves: how many leaves an item has.
        least: how many rows there are at least.
        headroom_for: the number of samples of larger batches that there is room for, 0 for none (see `util/headroom`).
    """
    counts = np.array([len(graph.items.trees) for graph in graphs])
    total = int(counts.sum())
    more = float(headroom(counts, headroom_for)) if headroom_for else 1.0
    size = max(round_up(math.ceil(more * total)), least)
    index = np.minimum(np.arange(size), max(total - 1, 0))
    sample = np.repeat(np.arange(len(graphs)), counts)
    position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    outlines = graphs[0].tables.outlines

    def padded(column: np.ndarray) -> np.ndarray:
        return (column[index] if total else np.zeros(size)).astype(np.int32)

    ragged = Ragged(
        rows=None,
        sample=padded(sample),
        position=padded(position),
        mask=np.arange(size) < total,
        outline=np.array([outlines.number(graph.items.outline) for graph in graphs], np.int32),
        outlines=outlines,
    )
    return tuple(padded(column) for column in rows.reshape(-1, leaves).T), ragged


def no_samples(rows: Any, outlines: Interned[Any]) -> Ragged:
    """What a batch of no samples returns."""
    numbers = np.zeros(0, np.int32)
    return Ragged(rows, numbers, numbers, np.zeros(0, bool), numbers, outlines)
