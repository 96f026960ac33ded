"""The input rows of a batch: all leaves of one class in one array, equal rows once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.batch.dedupe import equal_rows
from jitbatch.batch.join import Batch, Piece
from jitbatch.ir.cell import key_bits
from jitbatch.ir.input_rows import Inputs, numbers_together
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.util import compat, meshes
from jitbatch.util.array_leaves import NUMBERS


@dataclass(frozen=True)
class PackedInputs:
    """Input rows: an array for each class that has any, how many there are, and the row of each input value."""

    rows: dict[int, Any]
    counts: np.ndarray
    row: np.ndarray


def pack_inputs(
    pieces: Sequence[Piece], inputs: Sequence[Inputs], batch: Batch, tables: Tables, dedupe: bool
) -> PackedInputs:
    """Put the leaves of all samples together, class by class. Equal rows are kept once where `dedupe` is set and they
    are concrete: rows of an outer transformation may have different derivatives."""
    by_class: dict[int, list[Any]] = {}
    for sample in inputs:
        for number, arrays in sample:
            by_class.setdefault(number, []).extend(arrays)
    # Where the rows of each sample begin among those of each class.
    count = np.zeros((len(pieces), len(tables.classes)), np.int64)
    of_sample = np.arange(len(pieces)).repeat([len(piece.inputs.takes) for piece in pieces])
    classes, rows = np.concatenate([piece.inputs.counts for piece in pieces], axis=1)
    count[of_sample, classes] = rows
    start = count.cumsum(axis=0)
    counts = start[-1].copy()
    start -= count
    row = start[batch.sample_of_input, batch.input_class]
    row += batch.input_row
    packed: dict[int, Any] = {}
    for number, arrays in by_class.items():
        value_class = tables.classes[number]
        if any(issubclass(kind, compat.Tracer) for kind in set(map(type, arrays))):
            packed[number] = meshes.run(partial(_stack, value_class), arrays)
            continue
        host = _stack_on_host(arrays, int(counts[number]), value_class)
        if dedupe:
            first, which = equal_rows(host)
            host, counts[number] = host[first], len(first)
            here = slice(None) if len(by_class) == 1 else np.flatnonzero(batch.input_class == number)
            row[here] = which[row[here]]
        packed[number] = _wrap_keys(host, arrays[0]) if value_class.is_key else host
    return PackedInputs(packed, counts, row)


def _stack(value_class: ValueClass, arrays: Sequence[Any]) -> Any:
    parts = [jnp.reshape(jnp.asarray(a, value_class.dtype), _rows_shape(a, value_class)) for a in arrays]
    return jnp.concatenate(parts)


def _rows_shape(array: Any, value_class: ValueClass) -> tuple[int, ...]:
    """An array's shape as rows of a class: the leading axes as one."""
    shape = np.shape(array)
    return (math.prod(shape[: len(shape) - len(value_class.shape)]), *value_class.shape)


def _wrap_keys(data: np.ndarray, like: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _stack_on_host(arrays: Sequence[Any], rows: int, value_class: ValueClass) -> np.ndarray:
    """Numbers and arrays as so many rows of a class."""
    if value_class.is_key:
        data = [key_bits(key) for key in arrays]
        shapes = [(*_rows_shape(key, value_class), d.shape[-1]) for key, d in zip(arrays, data, strict=True)]
        return np.concatenate([d.reshape(shape) for d, shape in zip(data, shapes, strict=True)])
    kinds = set(map(type, arrays))
    if NUMBERS.issuperset(kinds):
        return np.array(arrays, value_class.dtype)  # numbers are many and small: all at once
    if not NUMBERS.isdisjoint(kinds):
        arrays = list(numbers_together(arrays, value_class.dtype))
    if any(kind is not np.ndarray and issubclass(kind, np.ndarray) for kind in kinds):
        arrays = list(map(np.asarray, arrays))  # an `np.matrix` has two axes, whatever is done to it
    flat = np.concatenate(arrays, axis=None, dtype=value_class.dtype, casting="unsafe")
    return flat.reshape(rows, *value_class.shape)


def pad_rows(rows: Any, size: int) -> Any:
    if rows is None or len(rows) == size:
        return rows
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
    return jnp.concatenate([rows, jnp.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
