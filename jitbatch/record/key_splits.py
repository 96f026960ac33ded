"""Splits of random keys: each row of a split is an operation of its own, for any number of rows.

`jax.random.split(key, n)` and its rows are a different operation for every `n`. For some generators, JAX computes row i
of a split by folding i into the key. There, a row is recorded as this fold, with i as data. So nodes with different
numbers of children have one type.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import primitives

from jitbatch.record.values import Op, Value, root
from jitbatch.util import compat
from jitbatch.util.caches import memoised


class Split(NamedTuple):
    """A split: its key, and whether the value holds the bits of the new keys."""

    key: Value
    is_unwrapped: bool


def split_of(value: Value) -> Split | None:
    """The split that computes a value. None if a row of the value differs from its index folded into the key."""
    op = value.source
    is_unwrapped = type(op) is Op and op.primitive is compat.random_unwrap_p
    if is_unwrapped:
        inner = root(op.inputs[0])
        op = inner.source if type(inner) is Value else None
    if type(op) is not Op or op.primitive is not primitives.random_split_p or len(op.params["shape"]) != 1:
        return None
    key = op.inputs[0]
    if type(key) is not Value or key.aval.shape or not folds(str(key.aval.dtype), compat.trace_context()):
        return None
    return Split(key, is_unwrapped)


@memoised(64)
def folds(dtype: str, settings: Any) -> bool:
    """Whether rows of splits are folds, for keys of a dtype under the current JAX settings. It depends on the
    generator, and on `jax_threefry_partitionable`."""
    with compat.eval_context():
        key = compat.key_named(dtype)
        return all(
            np.array_equal(
                jax.random.key_data(jax.random.split(key, count)),
                [jax.random.key_data(jax.random.fold_in(key, row)) for row in range(count)],
            )
            for count in (1, 2, 5)
        )


def without_unread(ops: Sequence[Op], results: Sequence[Any], read: Collection[int]) -> Sequence[Op]:
    """The operations without unread splits and slices of splits. Their shapes depend on the number of keys.

    Args:
        ops: in the order of execution.
        results: values that are read later.
        read: the row ids that nodes read.
    """
    if not any(op.primitive is primitives.random_split_p for op in ops):
        return ops
    used = {id(root(value)) for value in results}
    kept = []
    for op in reversed(ops):
        is_used = any(id(value) in used or value.row in read for value in op.outputs)
        if is_used or not _makes_keys(op):
            used.update(id(root(value)) for value in op.inputs)
            kept.append(op)
    return kept[::-1]


def _makes_keys(op: Op) -> bool:
    """Whether an operation splits a key, or takes the bits or rows of a split."""
    if op.primitive is primitives.random_split_p:
        return True
    if op.primitive is not compat.random_unwrap_p and op.index is None:
        return False
    source = getattr(root(op.inputs[0]), "source", None)
    return type(source) is Op and _makes_keys(source)
