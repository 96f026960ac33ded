"""The input rows of a batch: all leaves of one class in one array, equal rows once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import _compat
from jitbatch._canonical import key_bits
from jitbatch._concat import Batch, offsets
from jitbatch._dedupe import equal_rows
from jitbatch._graph import Graph, Tables, ValueClass


@dataclass(frozen=True)
class PackedInputs:
    """Input rows: an array for each class that has any, how many there are, and the row of each input value."""

    rows: dict[int, Any]
    counts: np.ndarray
    row: np.ndarray


def pack_inputs(
    graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], batch: Batch, tables: Tables, dedupe: bool
) -> PackedInputs:
    """Put the leaves of all samples together, class by class. Equal rows are kept once where `dedupe` is set and they
    are concrete: rows of an outer transformation may have different derivatives."""
    chunks: list[list[Any]] = [[] for _ in range(len(tables.classes))]
    blocks = [graph.input_blocks for graph in graphs]
    for graph, block, sample in zip(graphs, blocks, leaves, strict=True):
        sample = [*sample, *graph.constants] if graph.constants else sample
        for in_class, members in block.leaves:
            chunks[in_class] += [sample[leaf] for leaf in members]
    block_class = np.concatenate([block.block_class for block in blocks])
    block_rows = np.concatenate([block.rows for block in blocks])
    block_start = np.zeros(len(block_rows), np.int64)
    counts = [0] * len(tables.classes)
    for number, arrays in enumerate(chunks):
        if arrays:
            here = np.flatnonzero(block_class == number)
            ends = np.cumsum(block_rows[here])
            block_start[here] = ends - block_rows[here]
            counts[number] = int(ends[-1])
    first_block = offsets([len(block.rows) for block in blocks])[:-1]
    of_input = np.concatenate([block.of_input for block in blocks])
    of_input += np.repeat(first_block, [len(block.of_input) for block in blocks])
    row_of = block_start[of_input] + np.concatenate([graph.inputs[:, 2] for graph in graphs])
    class_of = batch.value_class[batch.input_values]
    packed: dict[int, Any] = {}
    for number, arrays in enumerate(chunks):
        if not arrays:
            continue
        value_class = tables.classes[number]
        if any(_compat.is_tracer(array) for array in arrays):
            parts = [jnp.reshape(jnp.asarray(a, value_class.dtype), _rows_shape(a, value_class)) for a in arrays]
            packed[number] = jnp.concatenate(parts)
            continue
        host = _stack_on_host(arrays, value_class)
        if dedupe:
            first, which = equal_rows(host)
            here = class_of == number
            row_of[here] = which[row_of[here]]
            host, counts[number] = host[first], len(first)
        packed[number] = _wrap_keys(host, arrays[0]) if value_class.is_key else host
    return PackedInputs(packed, np.array(counts), row_of)


def _rows_shape(array: Any, value_class: ValueClass) -> tuple[int, ...]:
    """An array's shape as rows of a class: the leading axes as one."""
    shape = np.shape(array)
    return (math.prod(shape[: len(shape) - len(value_class.shape)]), *value_class.shape)


def _wrap_keys(data: np.ndarray, like: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _stack_on_host(arrays: Sequence[Any], value_class: ValueClass) -> np.ndarray:
    if value_class.is_key:
        data = [key_bits(key) for key in arrays]
        shapes = [(*_rows_shape(key, value_class), d.shape[-1]) for key, d in zip(arrays, data, strict=True)]
        return np.concatenate([d.reshape(shape) for d, shape in zip(data, shapes, strict=True)])
    if value_class.shape == () and all(type(a) in (int, float, bool, complex) for a in arrays):
        return np.array(arrays, value_class.dtype)
    return np.concatenate([np.asarray(a, value_class.dtype).reshape(_rows_shape(a, value_class)) for a in arrays])


def pad_rows(rows: Any, size: int) -> Any:
    if rows is None or len(rows) == size:
        return rows
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
    return jnp.concatenate([rows, jnp.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
