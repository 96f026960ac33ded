"""Calls of decorated functions in the compiled core: known calls are recorded there, without any code of Python's.

The state of a recording stays in Python's objects, and the core fills their slots. So a recording can change hands at
every call: what the core does not know goes to `Recorder.call`, which says by its results and in these words what the
core must do (`tests/record/test_compiled_calls.py` compares the two).

The core relies on the slots of JAX's `Tracer`, and on where JAX keeps the current trace. A test when this is imported
notices a JAX that changed them. Then Python records all calls, after a warning.
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
    """The compiled core does not know this release of JAX, so Python records all calls of decorated functions."""


def bind(recorder: type) -> None:
    """Tell the compiled core of the classes of recordings. Called once, with the class of recorders."""
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
    """What records the known calls of a recording in the compiled core; None if Python is to record all calls."""
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
