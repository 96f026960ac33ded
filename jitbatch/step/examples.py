"""Examples of samples, for a process without samples: to trace a step, and to plan rows of padding."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.plan.capacity import Capacity
from jitbatch.step.places import Place
from jitbatch.step.samples import Use
from jitbatch.util import compat


def is_empty(value: Any) -> bool:
    """Whether an argument is an empty list, or arrays without rows."""
    if isinstance(value, Sequence) and not isinstance(value, str) and not hasattr(value, "_fields"):
        return len(value) == 0
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(np.ndim(leaf) > 0 and np.shape(leaf)[0] == 0 for leaf in leaves)


def first_row(rows: Any) -> Any:
    """Returns the first row of each array, or a row of zeros for an empty array."""
    arrays = jax.tree.map(np.asarray, rows)
    return jax.tree.map(lambda leaf: leaf[:1] if len(leaf) else np.zeros((1, *leaf.shape[1:]), leaf.dtype), arrays)


def first_samples(uses: Sequence[Use], samples: Mapping[Place, Any]) -> dict[str, Any]:
    """Returns the first sample of each use without its data, as a message: the capacity of a plan for this sample
    alone."""
    first = {
        place: value[:1] if isinstance(value, Sequence) else jax.tree.map(lambda leaf: leaf[:1], value)
        for place, value in samples.items()
    }
    capacities = [use.plan(first, is_alone=True).capacity.to_json() for use in uses]
    return {"examples": [[list(map(str, use.places)), text] for use, text in zip(uses, capacities, strict=True)]}


def samples_of(message: Mapping[str, Any]) -> dict[Place, list[Any]]:
    """Returns one sample for each place in a message of `first_samples`."""
    found: dict[Place, list[Any]] = {}
    for places, text in message["examples"]:
        for place, part in zip(places, example(Capacity.from_json(text)), strict=True):
            found[Place.parse(place)] = [part]
    return found


def example(capacity: Capacity) -> Any:
    """Returns the parts of a sample of a capacity, with data."""
    return jax.tree.map(_data_of, capacity.samples[0])


def _data_of(leaf: Any) -> Any:
    """Returns data for a leaf of an example: zeros for integers, which may be indices, and ones for floats."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if compat.is_prng_key(leaf.dtype):
        return jax.random.split(compat.key_named(str(leaf.dtype)), leaf.shape)
    return np.full(leaf.shape, np.issubdtype(leaf.dtype, np.inexact), leaf.dtype)
