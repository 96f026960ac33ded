"""The calls of one function: taken apart as by `take_apart`, bound once for each number of arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from jitbatch import jitbatch
from jitbatch.record import call_forms
from jitbatch.record.arguments import take_apart
from jitbatch.record.call_forms import CallForms
from jitbatch.util.errors import ArgumentError


def three(a: Any, b: Any, c: Any = None) -> Any: ...


def any_number(a: Any, *rest: Any) -> Any: ...


CALLS = [
    (three, None, (1, [2]), {}),
    (three, None, (1, [2], [3]), {}),
    (three, (0, None, 1), (1, {"x": 2}, [3]), {}),
    (three, None, (1, [2]), {"c": [4]}),
    (three, ((None, 0), None), (({"p": 1}, [2]), 3), {}),
    (three, ({"x": 0}, None), ({"x": [2]}, 3), {}),
    (any_number, None, (1, [2], [3], [4]), {}),
]


@pytest.mark.parametrize(("fun", "in_axes", "args", "kwargs"), CALLS)
def test_calls_are_taken_apart_as_the_first(fun: Any, in_axes: Any, args: Any, kwargs: Any) -> None:
    forms = CallForms(inspect.signature(fun), in_axes, False)
    wanted = take_apart(inspect.signature(fun), in_axes, False, args, kwargs)
    assert forms.take_apart(args, kwargs) == forms.take_apart(args, kwargs) == wanted


def test_a_known_number_of_arguments_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(call_forms, "take_apart", lambda *given: calls.append(given) or take_apart(*given))
    fun = jitbatch(lambda scale, x: scale * x)
    for _ in range(3):
        assert fun.batch(2.0, [1.0, 3.0]).tolist() == [2.0, 6.0]
    assert len(calls) == 1
    with pytest.raises(ArgumentError, match="too many positional arguments"):
        fun.batch(2.0, [1.0], [2.0])
    with pytest.raises(ArgumentError, match="missing a required argument"):
        fun.batch(2.0)
