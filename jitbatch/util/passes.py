"""Optional passes, and checks between stages. No pass changes what is computed, and each can be switched off to see
that.

This is for tests and for finding bugs, not for users. What is recorded with other passes is kept apart (see
`plan/planner`); nothing else looks at it. Equal calls are merged by a pass as well, which has a public switch,
`dedupe`.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jitbatch.util.caches import Cache

PASSES = ("sums", "open", "group", "hoist", "sink")
"""Sums over any number of terms; decorated functions opened around them; bare operations grouped into cells; what can
run before a loop; what can wait until after it."""

_off: ContextVar[frozenset[str]] = ContextVar("passes that are switched off", default=frozenset())


def switched_off() -> frozenset[str]:
    """The passes that do not run, and `CACHES` if the recorder remembers nothing."""
    return _off.get()


def runs(name: str) -> bool:
    return name not in _off.get()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, these passes do not run."""
    unknown = set(names) - set(PASSES)
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not among the passes {PASSES}")
    token = _off.set(_off.get() | set(names))
    try:
        yield
    finally:
        _off.reset(token)


CACHES = "caches"
"""Among what is switched off, beside the passes: the caches of the recorder."""


@contextmanager
def without_caches() -> Iterator[None]:
    """Inside, the recorder remembers nothing: the body of every call of a decorated function runs."""
    token = _off.set(_off.get() | {CACHES})
    try:
        yield
    finally:
        _off.reset(token)


def remembers() -> bool:
    """Whether the recorder uses its caches."""
    return CACHES not in _off.get()


def remembered(cache: Cache, key: Hashable, make: Callable[[], Any]) -> Any:
    """The entry of a cache of the recorder, made by `make()` where there is none or caches are switched off."""
    return cache.get_or_make(key, make) if remembers() else make()


_verifies: ContextVar[bool] = ContextVar("whether the result of each stage is verified", default=False)


def verifies() -> bool:
    """Whether the result of each stage is checked against its invariants."""
    return _verifies.get()


@contextmanager
def verified() -> Iterator[None]:
    """Inside, the result of each stage is checked; `VerifyError` names the invariant that is broken."""
    token = _verifies.set(True)
    try:
        yield
    finally:
        _verifies.reset(token)
