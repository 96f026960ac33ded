"""Samples split over an axis of a mesh: one shard of a plan for each position on the axis.

A step on a mesh is one program in the global view. Parameters are replicated. Only the `.batch` of a plan is a
`jax.shard_map`, inside of the program. So the transpose of this `shard_map` sums gradients of parameters over devices
once, and the body of the step is the same as on one device. (A `shard_map` around the whole step would sum gradients of
replicated parameters twice.)

Inside of the step, the axes of the mesh are automatic, even if they are explicit outside: the body names no shardings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jitbatch.plan.plan import Plan
from jitbatch.plan.ragged import Ragged
from jitbatch.step.buffers import Buffers, pack
from jitbatch.util.errors import ArgumentError

Run = Callable[[Plan, Sequence[Any]], Any]
"""Runs a plan with the leaves of its shared arguments."""


class Split:
    """The axis of a mesh that samples are split over.

    Attributes:
        mesh: the mesh, with automatic axes.
        axis: the name of the axis.
        owners: for each position on the axis, the process whose devices are there.
        mine: the positions of this process.
    """

    def __init__(self, mesh: Mesh, axis: str):
        self.mesh = Mesh(mesh.devices, mesh.axis_names)
        self.axis = axis
        by_position = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0).reshape(mesh.shape[axis], -1)
        processes = [sorted({device.process_index for device in devices}) for devices in by_position]
        if any(len(found) > 1 for found in processes):
            raise ArgumentError(
                f"the devices at one position on the axis {axis!r} belong to several processes. Each process plans its "
                "own samples for its own devices: make a mesh with one process at each position"
            )
        self.owners = tuple(found[0] for found in processes)
        self.mine = self.positions_of(jax.process_index())
        if not self.mine:
            raise ArgumentError(f"process {jax.process_index()} has no devices in the mesh: make a mesh of all devices")

    @property
    def shards(self) -> int:
        return len(self.owners)

    @cached_property
    def processes(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.owners)))

    def positions_of(self, process: int) -> tuple[int, ...]:
        return tuple(position for position, owner in enumerate(self.owners) if owner == process)

    def put(self, rows: np.ndarray) -> jax.Array:
        """Returns a global array, split over the axis, from the rows of this process."""
        return jax.make_array_from_process_local_data(self._sharding(self.axis), rows)

    def replicated(self, tree: Any) -> Any:
        """Returns a pytree whose arrays are on the mesh. Other arrays become replicated."""
        return tree if all(map(self._has, jax.tree.leaves(tree))) else jax.tree.map(self._placed, tree)

    def _has(self, leaf: Any) -> bool:
        if not isinstance(leaf, jax.Array):
            return True
        return isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == self.mesh

    def _placed(self, leaf: Any) -> Any:
        if self._has(leaf):
            return leaf
        if isinstance(leaf.sharding, NamedSharding) and self._is_mesh_of(leaf.sharding):
            sharding = NamedSharding(self.mesh, leaf.sharding.spec)  # the same, with automatic axes
            shards = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)
        if len(self.processes) == 1:
            return jax.device_put(leaf, self._sharding())
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise ArgumentError(
                f"an array {leaf.dtype}{list(leaf.shape)} is split over the devices of other processes in another way "
                f"than the mesh of the step has them: {leaf.sharding}. Put it on this mesh: {self.mesh}"
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(self._placed(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        # `jax.device_put` would compare the array in all processes, by a collective operation.
        return jax.make_array_from_process_local_data(self._sharding(), np.asarray(leaf), leaf.shape)

    def _is_mesh_of(self, sharding: NamedSharding) -> bool:
        """Whether the mesh of a sharding differs from this mesh in the types of its axes alone."""
        mesh = sharding.mesh
        return (
            isinstance(mesh, Mesh)
            and mesh.axis_names == self.mesh.axis_names
            and np.array_equal(mesh.devices, self.mesh.devices)
        )

    def run(self, run: Run, buffers: Buffers, index: int, leaves: Sequence[Any], parts: "Parts") -> Any:
        """Runs each shard of a plan on its devices.

        Args:
            run: runs one shard.
            buffers: the shards of a tuple of plans.
            index: the plan in this tuple.
            leaves: the leaves of the shared arguments.
            parts: the samples of each shard.

        Returns:
            The outputs of all samples, as `.batch` on one device returns them.
        """
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

        def run_shard(buffers: Buffers, arrays: list[Any]) -> Any:
            remaining = iter(arrays)
            local_leaves = [next(remaining) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
            outputs = run(buffers.first_shard()[index], local_leaves)
            if isinstance(outputs, Ragged):
                first = jax.lax.axis_index(self.axis) * parts.size
                return replace(outputs, sample=outputs.sample + first.astype(np.int32))
            return outputs

        split = PartitionSpec(self.axis)
        mapped = jax.shard_map(
            run_shard, mesh=self.mesh, in_specs=(split, PartitionSpec()), out_specs=split, axis_names={self.axis}
        )
        return parts.real(mapped(buffers, arrays))

    def _sharding(self, *axes: str) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))


def split_over(mesh: Mesh, axis: str | None) -> Split:
    """Returns the split over an axis of a mesh. None means its only axis."""
    if axis is None and len(mesh.axis_names) == 1:
        axis = mesh.axis_names[0]
    if axis is None or axis not in mesh.axis_names:
        raise ArgumentError(f"axis={axis!r} is no axis of the mesh, which has {', '.join(mesh.axis_names)}")
    return Split(mesh, axis)


@dataclass(frozen=True)
class Parts:
    """The samples of each shard. Shards of fewer samples are filled up.

    Attributes:
        split: the axis of the mesh.
        size: the number of rows of a shard.
        counts: the number of samples of each process; None if `pad` fills samples up, and padding rows are kept.
    """

    split: Split
    size: int
    counts: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """The number of samples of all processes. With `pad`, padding counts."""
        return self.size * self.split.shards if self.counts is None else sum(self.counts)

    @property
    def local_rows(self) -> int:
        """The number of rows of this process, with padding."""
        return self.size * len(self.split.mine)

    @cached_property
    def index(self) -> np.ndarray | None:
        """int32 [count]; the indices of the samples' rows among all rows. None if there is no padding, or if it is
        kept."""
        if self.counts is None or self.count == self.size * self.split.shards:
            return None
        found = []
        for process, count in zip(self.split.processes, self.counts, strict=True):
            positions = np.array(self.split.positions_of(process))
            rows = np.arange(count)
            found.append(positions[rows // self.size] * self.size + rows % self.size)
        return np.sort(np.concatenate(found)).astype(np.int32)

    def real(self, outputs: Any) -> Any:
        """Returns the outputs without rows of padding."""
        index = self.index
        if index is None:
            return outputs
        if isinstance(outputs, Ragged):
            order = np.full(self.size * self.split.shards, -1, np.int32)
            order[index] = np.arange(len(index))
            sample = jnp.asarray(order)[outputs.sample]
            return replace(
                outputs,
                sample=jnp.maximum(sample, 0),
                mask=outputs.mask & (sample >= 0),
                outline=outputs.outline[index],
            )
        return jax.tree.map(lambda leaf: leaf[index], outputs)

    def repeated(self, outputs: Any) -> Any:
        """Returns outputs of the right shapes for all samples, from the outputs of some. Only the types matter."""
        if isinstance(outputs, Ragged):
            return replace(outputs, outline=outputs.outline[np.arange(self.count) % len(outputs.outline)])
        return jax.tree.map(lambda leaf: leaf[np.arange(self.count) % len(leaf)], outputs)


@jax.tree_util.register_pytree_node_class
class Rows:
    """An argument with one row per sample, on the mesh. The body of the step gets the rows of all samples."""

    def __init__(self, values: Any, parts: Parts, given: Any = None):
        self.values = values
        self.parts = parts
        self.given = given  # the rows of this process

    def tree_flatten(self) -> tuple[tuple[Any], Parts]:
        return (self.values,), self.parts

    @classmethod
    def tree_unflatten(cls, parts: Parts, children: Sequence[Any]) -> "Rows":
        return cls(children[0], parts)

    def real(self) -> Any:
        return self.parts.real(self.values)


def put_plans(plans: Sequence[Plan], split: Split) -> Buffers:
    """Returns plans with the shards of this process as global arrays."""
    return pack(tuple(plans)).map(split.put)
