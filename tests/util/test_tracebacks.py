"""Tracebacks without the frames of libraries."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp

from jitbatch.util.tracebacks import users_part


def raised_by(fun: Callable[[], Any]) -> TracebackType | None:
    try:
        fun()
    except Exception as error:
        return error.__traceback__
    raise AssertionError("nothing was raised")


def wrong_shapes() -> Any:
    return jnp.ones(2) @ jnp.ones(3)


def names(frames: TracebackType | None) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(frames)]


def test_a_traceback_ends_at_the_users_line() -> None:
    whole = raised_by(lambda: jax.jit(wrong_shapes)())
    own = names(users_part(whole))
    assert own == ["raised_by", "<lambda>", "wrong_shapes"]
    lines = [frame.line for frame in traceback.extract_tb(users_part(whole))]
    assert lines[-1] == "return jnp.ones(2) @ jnp.ones(3)"


def test_nothing_is_left_out_where_jax_leaves_nothing_out() -> None:
    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        whole = raised_by(lambda: jax.jit(wrong_shapes)())
        assert names(users_part(whole)) == names(whole)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert len(names(whole)) > 3


def test_frames_of_libraries_stay_if_there_are_no_others() -> None:
    whole = raised_by(lambda: jnp.ones(2) @ jnp.ones(3))
    while whole is not None and whole.tb_frame.f_code.co_filename == __file__:
        whole = whole.tb_next
    assert names(users_part(whole)) == names(whole)
    assert users_part(None) is None
