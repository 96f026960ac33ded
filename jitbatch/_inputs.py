"""The input rows of a batch: all leaves of one class in one array, equal rows once."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import _compat
from jitbatch._canonical import key_bits
from jitbatch._concat import Batch, Piece, offsets
from jitbatch._dedupe import equal_rows
from jitbatch._graph import Tables, ValueClass
from jitbatch._values import NUMBERS


@dataclass(frozen=True)
class PackedInputs:
    """Input rows: an array for each class that has any, how many there are, and the row of each input value."""

    rows: dict[int, Any]
    counts: np.ndarray
    row: np.ndarray


def pack_inputs(
    pieces: Sequence[Piece], leaves: Sequence[Sequence[Any]], batch: Batch, tables: Tables, dedupe: bool
) -> PackedInputs:
    """Put the leaves of all samples together, class by class. Equal rows are kept once where `dedupe` is set and they
    are concrete: rows of an outer transformation may have different derivatives."""
    by_class: dict[int, list[Any]] = {}
    blocks = [piece.blocks for piece in pieces]
    for block, sample in zip(blocks, leaves, strict=True):
        if block.constants:
            sample = [*sample, *block.constants]
        for in_class, take in block.leaves:
            by_class.setdefault(in_class, []).extend(take(sample))
    block_class = np.concatenate([block.block_class for block in blocks])
    block_rows = np.concatenate([block.rows for block in blocks])
    block_start = np.zeros(len(block_rows), np.int64)
    counts = np.zeros(len(tables.classes), np.int64)
    _, of_input, row_of = np.concatenate([piece.inputs for piece in pieces], axis=1)
    of_input += np.repeat(offsets([len(b.rows) for b in blocks])[:-1], [piece.sizes[3] for piece in pieces])
    packed: dict[int, Any] = {}
    merged: dict[int, np.ndarray] = {}
    for number, arrays in by_class.items():
        value_class = tables.classes[number]
        here = np.flatnonzero(block_class == number)
        rows = block_rows[here]
        ends = np.cumsum(rows)
        block_start[here] = ends - rows
        counts[number] = ends[-1]
        if any(issubclass(kind, _compat.Tracer) for kind in set(map(type, arrays))):
            parts = [jnp.reshape(jnp.asarray(a, value_class.dtype), _rows_shape(a, value_class)) for a in arrays]
            packed[number] = jnp.concatenate(parts)
            continue
        host = _stack_on_host(arrays, rows, value_class)
        if dedupe:
            first, merged[number] = equal_rows(host)
            host, counts[number] = host[first], len(first)
        packed[number] = _wrap_keys(host, arrays[0]) if value_class.is_key else host
    row_of += block_start[of_input]
    for number, which in merged.items():
        here = batch.input_class == number
        row_of[here] = which[row_of[here]]
    return PackedInputs(packed, counts, row_of)


def _rows_shape(array: Any, value_class: ValueClass) -> tuple[int, ...]:
    """An array's shape as rows of a class: the leading axes as one."""
    shape = np.shape(array)
    return (math.prod(shape[: len(shape) - len(value_class.shape)]), *value_class.shape)


def _wrap_keys(data: np.ndarray, like: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _stack_on_host(arrays: Sequence[Any], rows: np.ndarray, value_class: ValueClass) -> np.ndarray:
    """Arrays as rows of a class, each as many as `rows` says."""
    if value_class.is_key:
        data = [key_bits(key) for key in arrays]
        shapes = [(*_rows_shape(key, value_class), d.shape[-1]) for key, d in zip(arrays, data, strict=True)]
        return np.concatenate([d.reshape(shape) for d, shape in zip(data, shapes, strict=True)])
    # Numbers are many and small: they are converted all at once.
    is_number = np.fromiter(map(NUMBERS.__contains__, map(type, arrays)), bool, len(arrays))
    if is_number.all():
        return np.array(arrays, value_class.dtype)
    others = [np.asarray(array, value_class.dtype).ravel() for array in itertools.compress(arrays, ~is_number)]
    if len(others) == len(arrays):
        return np.concatenate(others).reshape(int(rows.sum()), *value_class.shape)
    stacked = np.empty(int(rows.sum()), value_class.dtype)
    at = np.repeat(is_number, rows)
    stacked[at] = np.array(list(itertools.compress(arrays, is_number)), value_class.dtype)
    stacked[~at] = np.concatenate(others)
    return stacked


def pad_rows(rows: Any, size: int) -> Any:
    if rows is None or len(rows) == size:
        return rows
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
    return jnp.concatenate([rows, jnp.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
