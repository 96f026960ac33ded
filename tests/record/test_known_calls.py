"""What is remembered of calls, and of functions that call others."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitbatch import jitbatch
from jitbatch.record.known_calls import FunctionCalls, KnownCalls, code_of
from jitbatch.util import passes

X = np.float32([1.0, 2.0])


def test_a_function_is_composite_until_a_call_calls_no_other() -> None:
    function = FunctionCalls()
    assert not function.is_composite
    assert not function.is_composite_on((None,))
    function.note_composite(("f", 1))
    assert function.is_composite
    assert function.is_composite_on(("f", 1))
    assert function.is_composite_on(("f", None))
    assert not function.is_composite_on(("f", 2))
    function.note_cell_call(("f", 1))
    assert not function.is_composite
    assert not function.is_composite_on(("f", 1))
    assert function.is_composite_on(("f", None))


def test_functions_that_are_made_anew_are_known_by_their_code() -> None:
    def make() -> Any:
        return lambda: None

    assert code_of(make()) == code_of(make())
    assert code_of(len) == len


def test_calls_are_counted() -> None:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return w * x

    @jitbatch
    def twice(w: Any, x: Any) -> Any:
        return cell(w, cell(w, x))

    batched = jitbatch(lambda w, x: twice(w, twice(w, twice(w, x))))
    batched.plan(np.float32(2), [X])
    info = batched.cache_info()["subgraphs"]
    assert (info.hits, info.misses, info.currsize) == (5, 4, 1)  # `twice` ran each time, `cell` once


def test_nothing_is_remembered_without_caches() -> None:
    with passes.without_caches():
        known = KnownCalls(8)
        assert known.function(len) is not known.function(len)
        assert not known.remembers
    assert KnownCalls(8).remembers
