"""Outputs with a varying number of items per sample."""

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
    """The items of all samples as flat rows, returned by `.batch` for `out="ragged"`.

    The items of a sample are in the outermost list or tuple of its result, and in containers of the same type nested in
    it (trees of scores). Every other value in these containers is an item: an array, a dict, a tuple in a list. The
    items of all samples have one structure and equal shapes. A sample may have no items.

    A `Ragged` is a pytree of arrays. The number of rows is rounded up, so that a program that reads it does not depend
    on the exact number of items. Padding is at the end and repeats the last item; use `mask` to ignore it. On a mesh it
    is at the end of each shard. A `Ragged` also works inside `jax.vmap` and `jax.grad`.

    Attributes:
        rows: an item whose leaves have a leading axis of rows. The rows are the items of the first sample, then of the
            second, and so on, each in the order of `jax.tree.leaves`.
        sample: int32 [rows]; the index of each row's sample.
        position: int32 [rows]; the index of each row among the items of its sample.
        mask: bool [rows]; False for padding.
        outline: int32 [samples]; the nesting of each sample's items, as an index into `outlines`.
        outlines: all nestings that the function has returned so far. All batches share this object.

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
        """Returns the sum of the items of each sample: an item whose leaves have a leading axis of samples."""

        def total(leaf: Any) -> Any:
            mask = jnp.expand_dims(self.mask, tuple(range(1, leaf.ndim)))
            return jax.ops.segment_sum(jnp.where(mask, leaf, 0), self.sample, self.outline.shape[0])

        return jax.tree.map(total, self.rows)

    def to_list(self) -> list[Any]:
        """Returns a list of the samples' results, as the plain function returns them. Call it outside of `jax.jit`."""
        if compat.is_tracer(self.outline):
            raise OutputError(
                "how many items a sample has is not known inside jax.jit or jax.vmap: call to_list outside, or use "
                "rows, sample, position and mask"
            )
        leaves, item = jax.tree.flatten(self.rows)
        real = np.flatnonzero(self.mask)
        is_at_end = len(real) == 0 or real[-1] < len(real)  # else there is padding after each shard
        items = map(item.unflatten, zip(*(leaf if is_at_end else leaf[real] for leaf in leaves), strict=True))
        outlines = [self.outlines[outline_id] for outline_id in np.asarray(self.outline)]
        return [outline.unflatten(itertools.islice(items, outline.num_leaves)) for outline in outlines]


def ragged_outputs(
    graphs: Sequence[Any], rows: np.ndarray, leaves: int, least: int, headroom_for: int = 0
) -> tuple[tuple[np.ndarray, ...], Ragged]:
    """Computes the padded rows of a batch's items.

    Args:
        graphs: for each sample its `Graph` or `SampleProgram`; only `items` and `tables` are read.
        rows: the rows of all outputs, sample after sample.
        leaves: the number of leaves of an item.
        least: the least number of rows, padding included.
        headroom_for: add headroom for larger batches of this many samples; 0 for none (see `util/headroom`).

    Returns:
        For each leaf of an item its rows, int32 [rows]; and a `Ragged` without rows.
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
    """Returns the result of a batch without samples."""
    empty = np.zeros(0, np.int32)
    return Ragged(rows, empty, empty, np.zeros(0, bool), empty, outlines)
