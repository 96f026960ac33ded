"""Integer tables packed into one array: a compiled program takes one argument for all of them.

JAX spends about two microseconds on each argument of a compiled call, and a plan has some thirty tables. So a call
passes them as one int32 buffer, and the program slices it.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Layout:
    """The layout of tables in a buffer: their treedef, and their shapes in flattening order."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Packed:
    """A pytree of int32 arrays in one buffer. The buffer is its only leaf. Axes of shards come first."""

    buffer: Any
    layout: Layout

    def tree_flatten(self) -> tuple[tuple[Any], Layout]:
        return (self.buffer,), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, children: tuple[Any]) -> "Packed":
        return cls(children[0], layout)

    def unpack(self) -> Any:
        """The pytree of tables: views of a NumPy buffer, slices of any other buffer."""
        sizes = [math.prod(shape) for shape in self.layout.shapes]
        ends = list(itertools.accumulate(sizes))
        leaves = [
            self._part(end - size, end).reshape((*self._shards, *shape))
            for size, end, shape in zip(sizes, ends, self.layout.shapes, strict=True)
        ]
        return self.layout.treedef.unflatten(leaves)

    @property
    def _shards(self) -> tuple[int, ...]:
        return tuple(self.buffer.shape[:-1])

    def _part(self, begin: int, end: int) -> Any:
        if isinstance(self.buffer, np.ndarray):
            return self.buffer[..., begin:end]
        return lax.slice_in_dim(self.buffer, begin, end, axis=-1)


def pack(tables: Any, shards: tuple[int, ...] = ()) -> Packed:
    """Pack a pytree of int32 arrays. `shards` is the shape of the leading axes of shards, which all arrays have."""
    leaves, treedef = jax.tree.flatten(tables)
    assert all(leaf.dtype == np.int32 for leaf in leaves), "tables are int32"
    shapes = tuple(tuple(leaf.shape[len(shards) :]) for leaf in leaves)
    parts = [np.zeros((*shards, 0), np.int32), *(np.reshape(leaf, (*shards, -1)) for leaf in leaves)]
    return Packed(np.concatenate(parts, axis=-1), Layout(treedef, shapes))
