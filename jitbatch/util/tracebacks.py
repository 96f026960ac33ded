"""Tracebacks of errors in the user's code, without the frames of libraries in between."""

from types import TracebackType

import jax

from jitbatch.util.sites import is_library


def users_part(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of JAX, NumPy and jitbatch, so that it ends at the user's line. It stays
    complete if it has no other frames, or if `jax_traceback_filtering` is off."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept = [frame for frame in frames if not is_library(frame.tb_frame.f_code)]
    if not kept or jax.config.jax_traceback_filtering == "off":  # type: ignore[attr-defined]
        kept = frames
    chain: TracebackType | None = None
    for frame in reversed(kept):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain
