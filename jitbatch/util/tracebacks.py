"""Tracebacks of errors in the user's code, without the frames of libraries in between."""

import os
import sysconfig
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


def users_line_of(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback of an error, as `file:line`. Python's own modules are left
    out."""
    lines, traceback = ["?"], users_part(error.__traceback__)
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_PYTHON) or "site-packages" in file:
            lines.append(f"{file}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return lines[-1]


_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
