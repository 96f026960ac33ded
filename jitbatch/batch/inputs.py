"""The input rows of a batch: all leaves of one value class in one array, with equal rows merged."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.batch.types import Types
from jitbatch.core.reference.input_rows import InputRows
from jitbatch.ir.cell import key_bits
from jitbatch.ir.input_rows import Inputs, numbers_together
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.util import compat, meshes
from jitbatch.util.array_leaves import NUMBERS


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """The input rows of a batch, by value class.

    Attributes:
        read: the input rows in the core, which merges equal rows.
        others: for value classes that the core does not write, all rows before merging: tracers, keys, and classes with
            differentiated inputs. Only rows of keys are merged.
        classes: the number of value classes when the rows were packed. Another thread may add some to the tables.
    """

    read: InputRows
    others: dict[int, Any]
    tables: Tables
    classes: int

    @property
    def is_traced(self) -> bool:
        return any(map(compat.is_tracer, self.others.values()))

    @property
    def active(self) -> frozenset[int]:
        """The value classes whose rows may be differentiated."""
        return frozenset(class_id for class_id in self.others if not self.tables.classes[class_id].is_key)

    @cached_property
    def counts(self) -> np.ndarray:
        """int32 [classes]; the number of distinct rows of each value class."""
        return np.array([self.read.count(class_id) for class_id in range(self.classes)], np.int32)

    @cached_property
    def rows(self) -> dict[int, Any]:
        """The distinct rows of each value class with input rows."""
        return {
            class_id: self.padded(class_id, int(self.counts[class_id]))
            for class_id in np.flatnonzero(self.counts).tolist()
        }

    def padded(self, class_id: int, size: int) -> Any:
        """The distinct rows of a value class, padded with zeros to `size` rows; None if `size` is 0."""
        if not size:
            return None
        value_class, other = self.tables.classes[class_id], self.others.get(class_id)
        if other is not None and (not value_class.is_key or compat.is_tracer(other)):
            return pad_rows(other, size)
        if not value_class.is_key:
            rows = np.empty((size, *value_class.shape), value_class.dtype)
            self.read.write(class_id, rows)
            return rows
        if other is None:
            return jnp.zeros((size, *value_class.shape), value_class.dtype)
        data = key_bits(other)
        rows = np.empty((self.read.count(class_id), *data.shape[1:]), data.dtype)
        self.read.write(class_id, rows)
        return pad_rows(wrap_keys(rows, other), size)


def pack_inputs(
    inputs: Sequence[Inputs], types: Types, tables: Tables, differentiable: Collection[int] = ()
) -> PackedInputs:
    """Pack the leaves of all samples by value class. The core reads NumPy arrays of the right dtype itself.

    Args:
        inputs: the used leaves of each sample.
        types: the types of the batch.
        tables: the tables of the batch.
        differentiable: the value classes with differentiated inputs. Their rows are not merged.
    """
    formats = tables.class_formats()[:]
    read = types.table.inputs(inputs, formats)
    others: dict[int, Any] = {}
    for class_id in sorted({*read.unread, *differentiable}):
        arrays = [
            array for sample in inputs for value_class, some in sample if value_class == class_id for array in some
        ]
        value_class = tables.classes[class_id]
        if any(issubclass(kind, compat.Tracer) for kind in set(map(type, arrays))):
            others[class_id] = meshes.run(partial(_stack, value_class), arrays)
            read.put_opaque(class_id)
        elif class_id in differentiable:
            rows = np.zeros((0, *value_class.shape), value_class.dtype)
            others[class_id] = stack_on_host(arrays, value_class) if arrays else rows
            read.put_opaque(class_id)
        else:
            host = stack_on_host(arrays, value_class)
            read.put(class_id, host)
            if value_class.is_key:
                others[class_id] = wrap_keys(host, arrays[0])
    return PackedInputs(read, others, tables, len(formats))


def _stack(value_class: ValueClass, arrays: Sequence[Any]) -> Any:
    parts = [jnp.reshape(jnp.asarray(a, value_class.dtype), _rows_shape(a, value_class)) for a in arrays]
    return jnp.concatenate(parts)


def _rows_shape(array: Any, value_class: ValueClass) -> tuple[int, ...]:
    """The shape of an array as rows of a value class: its leading axes become one."""
    shape = np.shape(array)
    return (math.prod(shape[: len(shape) - len(value_class.shape)]), *value_class.shape)


def wrap_keys(data: np.ndarray, like: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def stack_on_host(arrays: Sequence[Any], value_class: ValueClass) -> np.ndarray:
    """Numbers and arrays as the rows of a value class, in one NumPy array; keys as their key data."""
    if value_class.is_key:
        data = [key_bits(key) for key in arrays]
        shapes = [(*_rows_shape(key, value_class), d.shape[-1]) for key, d in zip(arrays, data, strict=True)]
        return np.concatenate([d.reshape(shape) for d, shape in zip(data, shapes, strict=True)])
    kinds = set(map(type, arrays))
    if NUMBERS.issuperset(kinds):
        return np.array(arrays, value_class.dtype)  # one call, because numbers are many and small
    if not NUMBERS.isdisjoint(kinds):
        arrays = list(numbers_together(arrays, value_class.dtype))
    if any(kind is not np.ndarray and issubclass(kind, np.ndarray) for kind in kinds):
        arrays = list(map(np.asarray, arrays))  # an `np.matrix` would keep two axes
    rows = sum(_rows_shape(array, value_class)[0] for array in arrays)
    flat = np.concatenate(arrays, axis=None, dtype=value_class.dtype, casting="unsafe")
    return flat.reshape(rows, *value_class.shape)


def pad_rows(rows: Any, size: int) -> Any:
    """The rows, padded with zeros to `size` rows."""
    if rows is None or len(rows) == size:
        return rows
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
    return jnp.concatenate([rows, jnp.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
