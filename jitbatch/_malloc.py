"""Memory that stays with the process between steps, where the C library would give it back.

On a CPU, a step allocates what it needs at once, and frees it at its end. glibc gives a block of more than 32 MiB back
to the system, and the next step pays for every page that it touches: up to a third of its time (`bench/kept.py`).
"""

import ctypes
import sys
from collections.abc import Callable

import jax

LARGEST_KEPT = 32 * 2**20
"""The largest block that glibc keeps by itself."""

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of <malloc.h>
_kept = False


def keep_memory() -> bool:
    """Keep the memory that a step frees, for the next step. For training on CPUs, where a step needs more than 32 MiB.

    To be called before JAX runs anything. It is a setting of the whole process, whose memory will no longer shrink: the
    same as `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_ARENA_MAX=1` in its environment.

    Returns:
        Whether it was done: only glibc, and so Linux, has and needs it.
    """
    global _kept
    mallopt = _mallopt()
    if mallopt is not None:
        settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1))
        _kept = all(mallopt(*setting) for setting in settings)
    return _kept


def gives_back(size: int) -> bool:
    """Whether a block of this size is given back to the system when a step ends."""
    return size > LARGEST_KEPT and not _kept and jax.default_backend() == "cpu" and _mallopt() is not None


def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
