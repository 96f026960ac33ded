"""Cases of which only some run by default: the others run with the slow tests."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any], first: int = 0, name: Callable[[Any], str] | None = None) -> list[Any]:
    """The cases for `parametrize`. By default every `step`-th runs, from the case with index `first` on.

    Args:
        step, first: which cases run by default.
        cases: the cases; a tuple has the values of several parameters.
        name: the id of a case.
    """
    params = []
    for index, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = () if index % step == first % step else pytest.mark.slow
        params.append(pytest.param(*values, id=name and name(case), marks=marks))
    return params
