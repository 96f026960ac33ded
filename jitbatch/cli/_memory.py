"""Whether a model fits into memory, told before it is made."""

import math
import os
from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx

from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import Settings

COPIES = 4
"""How often training holds the parameters at least: themselves, their gradients, and two moments of Adam."""

GIB = 2**30

Model = TypeVar("Model", bound=nnx.Module)


def make_model(make: Callable[[], Model], settings: Settings) -> Model:
    """Make a model, if there is memory for training it."""
    leaves = jax.tree.leaves(nnx.state(nnx.eval_shape(make)))
    needed = COPIES * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    available = memory()
    if available is not None and needed > available:
        sizes = f"--hidden {settings.hidden}"
        if settings.embedding is not None:
            sizes += f" and --embedding {settings.embedding}"
        raise CommandError(
            f"training a model with {sizes} takes at least {needed / GIB:,.1f} GiB of memory, and there are "
            f"{available / GIB:,.1f} GiB. Give smaller sizes"
        )
    return make()


def memory() -> int | None:
    """The bytes that the first device has, or None where that cannot be told."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # as on Windows
        return None
