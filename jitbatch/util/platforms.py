"""The platform that a computation will run on."""

from collections.abc import Iterable
from typing import Any

import jax

from jitbatch.util import compat
from jitbatch.util.caches import at_clearing

_arrays: set[type] = set()
"""JAX's classes of concrete arrays. Calling JAX's check for each leaf takes longer."""
at_clearing(_arrays.clear)


def platform_of(leaves: Iterable[Any]) -> str:
    """Returns the platform of the first leaf that is bound to a device, else the default platform.

    A jitted function runs where its committed arguments are. An abstract argument with a sharding
    (`jax.ShapeDtypeStruct`) counts as committed: programs are compiled ahead of time from these.
    """
    for leaf in leaves:
        kind = type(leaf)
        if kind not in _arrays and isinstance(leaf, jax.Array) and not compat.is_tracer(leaf):
            _arrays.add(kind)
        is_committed = kind in _arrays and leaf.committed
        sharding = leaf.sharding if is_committed or isinstance(leaf, jax.ShapeDtypeStruct) else None
        if sharding is not None:
            return next(iter(sharding.device_set)).platform
    default: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if default is None:
        return jax.default_backend()
    return default if isinstance(default, str) else default.platform
