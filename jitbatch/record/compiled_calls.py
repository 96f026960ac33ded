"""Decorated calls in the compiled core. It records known calls without running Python code.

The state of a recording stays in Python objects, and the core fills their slots. So each call can be recorded by either
side: the core passes unknown calls to `Recorder.call`. The code below is the specification of the core
(`tests/record/test_compiled_calls.py` compares the two).

The core relies on the slots of JAX's `Tracer`, and on the location of JAX's current trace. A test at import time
detects a JAX release that changed them. Then Python records all calls, after a warning.
"""

import warnings
from typing import TYPE_CHECKING, Any

from jitbatch.core import choice
from jitbatch.record.graph_builder import GraphBuilder
from jitbatch.record.replay import further_rows, replay
from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import NODE, Op, Value
from jitbatch.util import compat

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder

_bound = False


class SlowRecordingWarning(UserWarning):
    """The compiled core does not support this release of JAX, so Python records all decorated calls."""


def bind(recorder: type) -> None:
    """Register the class of recorders with the compiled core. Called once."""
    global _bound
    if choice.native is None:
        return
    try:
        choice.native.bind_recorder(
            Value, recorder, GraphBuilder, Op, NODE, compat.trace_state(), is_named_tuple, replay, further_rows
        )  # fmt: skip
        _bound = True
    except (AttributeError, LookupError, TypeError) as error:
        warnings.warn(
            f"the compiled core does not know this release of JAX ({error}), so Python records the calls of decorated "
            "functions, several times as slowly. Results are the same",
            SlowRecordingWarning,
            stacklevel=2,
        )


def is_bound() -> bool:
    """Whether the compiled core records calls."""
    return _bound


def caller_of(recorder: "Recorder") -> Any:
    """The object of the compiled core that records the known calls of a recording. None if Python records all calls."""
    if not _bound or not recorder.known.remembers or choice.name() != "native":
        return None
    templates = recorder.known.compiled.get_or_make("templates", choice.native.Templates)  # type: ignore[union-attr]
    leaks = recorder.leaks
    return choice.native.Calls(  # type: ignore[union-attr]
        recorder,
        recorder.builder,
        leaks.hidden,
        leaks.exposed,
        recorder.composites,
        templates,
        recorder.sites,
    )
