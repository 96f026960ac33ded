"""The choice of the core that plans: the compiled core, or the reference in Python.

The compiled core is the default where it was built. `JITBATCH_CORE=python` in the environment, or `using("python")` in
tests, chooses the reference. No object of one core reaches the other: the `TypeTable` of a batch's types makes all
objects of the batch.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from jitbatch.core.reference import assembler, numbering, ranks, type_table

VERSION = 1
"""The version of the interface to the compiled core. It changes together with the one in `native/module.cpp`."""

_missing = ""
"""Why there is no compiled core."""

try:
    from jitbatch.core import native

    if getattr(native, "version", VERSION) != VERSION:
        native = None
        _missing = "the compiled core of jitbatch is of another version than its Python code"
except ImportError:
    native = None
    _missing = "jitbatch was installed without its compiled core"


class SlowPlanningWarning(UserWarning):
    """The compiled core is missing or outdated, so the slower core in Python makes the plans."""


def _at_first() -> str:
    asked = os.environ.get("JITBATCH_CORE", "")
    if asked not in ("", "native", "python"):
        raise ValueError(f"JITBATCH_CORE is {asked!r}; it can be 'native' or 'python'")
    if asked == "native" and native is None:
        raise ImportError(f"JITBATCH_CORE is 'native', but {_missing}")
    if asked:
        return asked
    if native is None:
        warnings.warn(
            f"{_missing}, so plans are made in Python, several times as slowly. "
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
    """The name of the chosen core: "native" or "python"."""
    return _chosen.get()


@contextmanager
def using(core: str) -> Iterator[None]:
    """Inside this context, `core` ("native" or "python") decides types and numbers recorded samples."""
    if core not in ("native", "python"):
        raise ValueError(f"there is no core {core!r}; it can be 'native' or 'python'")
    if core == "native" and native is None:
        raise ImportError(_missing)
    token = _chosen.set(core)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_compiled(table: type_table.TypeTable) -> bool:
    """Whether the compiled core made a `TypeTable`."""
    return native is not None and isinstance(table, native.TypeTable)


def number(*args: Any) -> numbering.Numbered:
    """Number a recording into a graph with the chosen core (see `numbering.number`)."""
    if name() == "native":
        return numbering.Numbered(*native.number(*args))  # type: ignore[union-attr]
    return numbering.number(*args)


def find_ranks(*args: np.ndarray) -> np.ndarray:
    """Find the rank of each node with the chosen core (see `ranks.find_ranks`)."""
    return native.find_ranks(*args) if name() == "native" else ranks.find_ranks(*args)  # type: ignore[union-attr]


def make_type_table(*args: Any) -> type_table.TypeTable:
    """Make the `TypeTable` of a batch in the chosen core."""
    if name() == "native":
        return native.TypeTable(*args)  # type: ignore[union-attr, return-value]
    return type_table.TypeTable(*args)


def make_nodes(*args: np.ndarray) -> assembler.Nodes:
    """Make the `Nodes` of a sample in flight in the chosen core."""
    return native.Nodes(*args) if name() == "native" else assembler.Nodes(*args)  # type: ignore[union-attr, return-value]


def make_assembler(*args: Any) -> assembler.Assembler:
    """Make the `Assembler` of a program for samples in flight in the chosen core."""
    if name() == "native":
        return native.Assembler(*args)  # type: ignore[union-attr, return-value]
    return assembler.Assembler(*args)
