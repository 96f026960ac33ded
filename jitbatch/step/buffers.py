"""Pytrees of arrays in one buffer for each dtype, to put them on the devices of a mesh.

Putting an array of any size on a mesh takes some 30 us, and a plan has 10 to 40 leaves. So the leaves of all plans of a
step travel as one buffer for each dtype, and the program slices them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat


@dataclass(frozen=True)
class Slot:
    """The place of a leaf: its buffer, where it begins there, its shape in a shard; of keys their implementation."""

    buffer: int
    begin: int
    shape: tuple[int, ...]
    key_impl: Any = None


@dataclass(frozen=True)
class BufferLayout:
    """The layout of leaves in buffers: their treedef, and the slot of each."""

    treedef: Any
    slots: tuple[Slot, ...]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Buffers:
    """A pytree of arrays, packed into buffers of shape [shards, size]. The buffers are its leaves."""

    buffers: tuple[Any, ...]
    layout: BufferLayout

    def tree_flatten(self) -> tuple[tuple[Any, ...], BufferLayout]:
        return self.buffers, self.layout

    @classmethod
    def tree_unflatten(cls, layout: BufferLayout, children: Sequence[Any]) -> "Buffers":
        return cls(tuple(children), layout)

    def map(self, fun: Callable[[Any], Any]) -> "Buffers":
        return Buffers(tuple(map(fun, self.buffers)), self.layout)

    def first_shard(self) -> Any:
        """Returns the pytree of the first shard. Inside of `jax.shard_map`, this is the device's own."""
        return self.layout.treedef.unflatten(map(self._leaf, self.layout.slots))

    def _leaf(self, slot: Slot) -> Any:
        flat = self.buffers[slot.buffer][0]
        leaf = flat[slot.begin : slot.begin + math.prod(slot.shape)].reshape(slot.shape)
        return leaf if slot.key_impl is None else jax.random.wrap_key_data(leaf, impl=slot.key_impl)


def pack(tree: Any) -> Buffers:
    """Packs a pytree of arrays with a leading axis of shards."""
    leaves, treedef = jax.tree.flatten(tree)
    impls = [jax.random.key_impl(leaf) if compat.is_prng_key(leaf.dtype) else None for leaf in leaves]
    arrays = [
        np.asarray(leaf if impl is None else jax.random.key_data(leaf))
        for leaf, impl in zip(leaves, impls, strict=True)
    ]
    dtypes = sorted({array.dtype for array in arrays}, key=str)
    slots: dict[int, Slot] = {}
    buffers = []
    for buffer_id, dtype in enumerate(dtypes):
        chosen = [position for position, array in enumerate(arrays) if array.dtype == dtype]
        sizes = [math.prod(arrays[position].shape[1:]) for position in chosen]
        for position, end, size in zip(chosen, itertools.accumulate(sizes), sizes, strict=True):
            slots[position] = Slot(buffer_id, end - size, arrays[position].shape[1:], impls[position])
        flat = [arrays[position].reshape(len(arrays[position]), -1) for position in chosen]
        buffers.append(flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1))
    return Buffers(tuple(buffers), BufferLayout(treedef, tuple(slots[position] for position in range(len(leaves)))))
