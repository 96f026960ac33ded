"""Memory that the process keeps between training steps.

On a CPU, a training step allocates one block of memory and frees it at its end. glibc returns a block of more than
32 MiB to the system. The next training step then pays for every page that it touches: up to a third of its time
(`bench/kept.py`).
"""

import ctypes
import sys
from collections.abc import Callable

import jax

KEPT, LARGEST = 32 * 2**20, 64 * 2**20
"""The largest block that glibc keeps by default, and the largest that it can keep in a thread of XLA, in bytes."""

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of <malloc.h>
_kept = False


def keep_memory() -> bool:
    """Keep the memory of a training step for the next one. For training on CPUs, if a step needs 32 to 64 MiB.

    Call it before JAX runs anything. It is a setting of the whole process, whose memory will no longer shrink. It has
    the effect of `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647` in the environment.

    Returns:
        Whether the setting was made. Only glibc, on Linux, has it and needs it.
    """
    global _kept
    mallopt = _mallopt()
    if mallopt is not None:
        _kept = all(mallopt(*setting) for setting in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)))
    return _kept


def remedy(size: int) -> str | None:
    """Advice for blocks of `size` bytes that return to the system after every training step; None if they do not."""
    if size <= (LARGEST if _kept else KEPT) or jax.default_backend() != "cpu" or _mallopt() is None:
        return None
    if size <= LARGEST:
        return "call jitbatch.keep_memory() at the start of the program"
    return "set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment, for larger pages"


def give_back() -> None:
    """Return freed memory to the system, unless `keep_memory` was called. glibc keeps memory below a block in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" and not _kept else None
    if trim is not None:
        trim(0)


def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
