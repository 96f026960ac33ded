"""Optional passes, and checks between stages. No pass changes what is computed, and each can be switched off to see
that.

This is for tests and for finding bugs, not for users. What is recorded with other passes is kept apart (see
`plan/planner`); nothing else looks at it. Equal calls are merged by a pass as well, which has a public switch,
`dedupe`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PASSES = ("sums", "open", "group", "hoist", "sink")
"""Sums over any number of terms; decorated functions opened around them; bare operations grouped into cells; what can
run before a loop; what can wait until after it."""

_off: ContextVar[frozenset[str]] = ContextVar("passes that are switched off", default=frozenset())


def switched_off() -> frozenset[str]:
    """The passes that do not run."""
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
