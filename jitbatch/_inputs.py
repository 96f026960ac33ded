"""The input rows of a batch: all leaves of one class in one array, equal rows once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import _compat
from jitbatch._canonical import key_bits
from jitbatch._concat import Batch
from jitbatch._dedupe import equal_rows
from jitbatch._graph import Graph, Tables


@dataclass(frozen=True)
class PackedInputs:
    """Input rows: an array for each class that has any, how many there are, and the row of each input value."""

    rows: dict[int, Any]
    counts: np.ndarray
    row: np.ndarray


def pack_inputs(
    graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], batch: Batch, tables: Tables, dedupe: bool
) -> PackedInputs:
    chunks: list[list[Any]] = [[] for _ in range(len(tables.classes))]
    counts = [0] * len(tables.classes)
    rows = []
    for graph, sample in zip(graphs, leaves, strict=True):
        base: dict[tuple[int, int], int] = {}
        for value, (leaf, depth, row) in enumerate(graph.inputs.tolist()):
            start = base.get((leaf, depth))
            if start is None:
                in_class = int(graph.value_class[value])
                array = sample[leaf]
                start = base[leaf, depth] = counts[in_class]
                chunks[in_class].append(array)
                counts[in_class] += int(np.prod(np.shape(array)[:depth], dtype=np.int64))
            rows.append(start + row)
    row_of = np.array(rows, np.int64)
    class_of = batch.value_class[batch.input_values]
    packed: dict[int, Any] = {}
    for number, arrays in enumerate(chunks):
        if not arrays:
            continue
        value_class = tables.classes[number]
        if any(_compat.is_tracer(array) for array in arrays):
            parts = [jnp.reshape(jnp.asarray(a, value_class.dtype), (-1, *value_class.shape)) for a in arrays]
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


def _wrap_keys(data: np.ndarray, like: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _stack_on_host(arrays: Sequence[Any], value_class: Any) -> np.ndarray:
    if value_class.is_key:
        data = [key_bits(key) for key in arrays]
        return np.concatenate([d.reshape(-1, *value_class.shape, d.shape[-1]) for d in data])
    if value_class.shape == () and all(type(a) in (int, float, bool, complex) for a in arrays):
        return np.array(arrays, value_class.dtype)
    return np.concatenate([np.asarray(a, value_class.dtype).reshape(-1, *value_class.shape) for a in arrays])


def pad_rows(rows: Any, size: int) -> Any:
    if rows is None or len(rows) == size:
        return rows
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
    return jnp.concatenate([rows, jnp.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
