"""Which core plans: the compiled one, or the reference in Python.

The compiled one is used where it was built. `JITBATCH_CORE=python` in the environment, or `using("python")` in tests,
chooses the reference. What was made by one core is never given to the other: everything of a batch is made by the
`TypeTable` of its types.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from jitbatch.core.reference import numbering, ranks, type_table

try:
    from jitbatch.core import native
except ImportError:
    native = None


class SlowPlanningWarning(UserWarning):
    """The compiled core is missing, and plans are made in Python."""


def _at_first() -> str:
    asked = os.environ.get("JITBATCH_CORE", "")
    if asked not in ("", "native", "python"):
        raise ValueError(f"JITBATCH_CORE is {asked!r}; it can be 'native' or 'python'")
    if asked == "native" and native is None:
        raise ImportError("JITBATCH_CORE is 'native', but jitbatch was installed without its compiled core")
    if asked:
        return asked
    if native is None:
        warnings.warn(
            "jitbatch was installed without its compiled core, and makes plans in Python, several times as slowly. "
            "Install a C++20 compiler and then jitbatch anew (`pip install --force-reinstall --no-deps jitbatch`), or "
            "set JITBATCH_CORE=python to do without",
            SlowPlanningWarning,
            stacklevel=2,
        )
        return "python"
    return "native"


_default = _at_first()
_chosen: ContextVar[str] = ContextVar("the core that plans", default=_default)


def name() -> str:
    """The core that plans: "native" or "python"."""
    return _chosen.get()


@contextmanager
def using(core: str) -> Iterator[None]:
    """Inside, types are decided and samples recorded by this core."""
    if core not in ("native", "python"):
        raise ValueError(f"there is no core {core!r}; it can be 'native' or 'python'")
    if core == "native" and native is None:
        raise ImportError("jitbatch was installed without its compiled core")
    token = _chosen.set(core)
    try:
        yield
    finally:
        _chosen.reset(token)


def number(*args: Any) -> numbering.Numbered:
    """A recording numbered into a graph (see `numbering.number`) by the chosen core."""
    if name() == "native":
        return numbering.Numbered(*native.number(*args))  # type: ignore[union-attr]
    return numbering.number(*args)


def find_ranks(*args: np.ndarray) -> np.ndarray:
    """The rank of each node (see `ranks.find_ranks`) by the chosen core."""
    return native.find_ranks(*args) if name() == "native" else ranks.find_ranks(*args)  # type: ignore[union-attr]


def make_type_table(*args: Any) -> type_table.TypeTable:
    """The types of a batch (see `TypeTable`), as the chosen core reads them."""
    if name() == "native":
        return native.TypeTable(*args)  # type: ignore[union-attr, return-value]
    return type_table.TypeTable(*args)
