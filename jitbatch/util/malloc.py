"""Memory that stays with the process between steps, where the C library would give it back.

On a CPU, a step allocates what it needs at once, and frees it at its end. glibc gives a block of more than 32 MiB back
to the system, and the next step pays for every page that it touches: up to a third of its time (`bench/kept.py`).
"""

import ctypes
import sys
from collections.abc import Callable

import jax

KEPT, LARGEST = 32 * 2**20, 64 * 2**20
"""The largest block that glibc keeps by itself, and the largest that it can be told to keep in a thread of XLA's."""

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of <malloc.h>
_kept = False


def keep_memory() -> bool:
    """Keep the memory that a step frees, for the next step. For training on CPUs, where a step needs 32 to 64 MiB.

    To be called before JAX runs anything. It is a setting of the whole process, whose memory will no longer shrink: the
    same as `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647` in its environment.

    Returns:
        Whether it was done: only glibc, and so Linux, has and needs it.
    """
    global _kept
    mallopt = _mallopt()
    if mallopt is not None:
        _kept = all(mallopt(*setting) for setting in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)))
    return _kept


def remedy(size: int) -> str | None:
    """What to do about blocks of this size being given back to the system after every step; None if they are not."""
    if size <= (LARGEST if _kept else KEPT) or jax.default_backend() != "cpu" or _mallopt() is None:
        return None
    if size <= LARGEST:
        return "call jitbatch.keep_memory() at the start of the program"
    return "set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment, for larger pages"


def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
