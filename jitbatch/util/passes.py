"""Optional passes, and checks between stages. No pass changes results; a test can switch each one off to show that.

The switches are for tests and for finding bugs, not for users. Recordings with different passes have different cache
keys (see `plan/contexts`). The pass that merges equal calls has a public switch instead, `dedupe`.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jitbatch.util.caches import Cache

PASSES = ("sums", "open", "group", "hoist", "sink")
"""In this order: find sums over any number of terms; open decorated functions around such sums; group bare operations
into cells; move work before a loop; move work after a loop."""

_off: ContextVar[frozenset[str]] = ContextVar("passes that are switched off", default=frozenset())


def switched_off() -> frozenset[str]:
    """The passes that are switched off, and `CACHES` if the recorder uses no caches."""
    return _off.get()


def runs(name: str) -> bool:
    return name not in _off.get()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside this context, these passes do not run."""
    unknown = set(names) - set(PASSES)
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not among the passes {PASSES}")
    token = _off.set(_off.get() | set(names))
    try:
        yield
    finally:
        _off.reset(token)


CACHES = "caches"
"""The entry of `switched_off()` for the caches of the recorder."""


@contextmanager
def without_caches() -> Iterator[None]:
    """Inside this context, the recorder uses no caches: the body of every call of a decorated function runs."""
    token = _off.set(_off.get() | {CACHES})
    try:
        yield
    finally:
        _off.reset(token)


def remembers() -> bool:
    """Whether the recorder uses its caches."""
    return CACHES not in _off.get()


def remembered(cache: Cache, key: Hashable, make: Callable[[], Any]) -> Any:
    """The entry of a recorder cache. `make()` makes it if it is missing, or if caches are switched off."""
    return cache.get_or_make(key, make) if remembers() else make()


_verifies: ContextVar[bool] = ContextVar("whether the result of each stage is verified", default=False)


def verifies() -> bool:
    """Whether the result of each stage is checked against its invariants."""
    return _verifies.get()


@contextmanager
def verified() -> Iterator[None]:
    """Inside this context, the result of each stage is checked. A `VerifyError` names the broken invariant."""
    token = _verifies.set(True)
    try:
        yield
    finally:
        _verifies.reset(token)
