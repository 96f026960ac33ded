"""Plans by both cores, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jitbatch import clear_caches
from jitbatch.core import choice

CORES = ("native", "python") if choice.native is not None else ("python",)


@contextmanager
def planning_by(core: str) -> Iterator[None]:
    """Inside, samples are recorded and planned by this core, whatever was known before."""
    clear_caches()
    with choice.using(core):
        yield
    clear_caches()


def content(leaf: Any) -> tuple[Any, ...]:
    """An array's dtype, shape and bits."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def leaves(plan: Any) -> dict[str, tuple[Any, ...]]:
    """The content of every leaf of a plan."""
    return {jax.tree_util.keystr(path): content(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(plan)}


def assert_equal_plans(one: Any, other: Any) -> None:
    ours, theirs = leaves(one), leaves(other)
    assert ours.keys() == theirs.keys()
    for path, found in ours.items():
        assert found == theirs[path], f"{path} differs"
    assert repr(one.static.program) == repr(other.static.program)
    assert repr(one.static.arenas) == repr(other.static.arenas)
    for mine, its in zip(one.graphs, other.graphs, strict=True):
        for name in ("kind", "operands", "outputs", "level", "value_class", "inputs", "edges_present"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(its, name), err_msg=name)
