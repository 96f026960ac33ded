"""Calls of decorated functions: the base class in the compiled core, and the one in Python that says what it does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.core import choice
from jitbatch.record.decorated import Decorated, DecoratedInPython

BASES = [DecoratedInPython, *([Decorated] if choice.native is not None else [])]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__module__)
def test_a_call_runs_the_function_or_is_recorded(base: Any) -> None:
    class Function(base):
        def __init__(self, fun: Any):
            self.__wrapped__, self._key = fun, fun

    traces = []

    def double(w: Any, x: Any, *, plus: Any = 0) -> Any:
        traces.append(type(x).__name__)
        return w * x + plus

    decorated = Function(double)
    assert decorated(2, 3) == 6
    assert decorated(2, 3, plus=1) == 7
    assert decorated(*[2], x=4) == 8
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        decorated(2)
    assert jax.vmap(decorated, (None, 0))(2, jnp.arange(3)).tolist() == [0, 2, 4]
    batched = jitbatch(lambda w, xs: sum(decorated(w, x, plus=1) for x in xs))
    traces.clear()
    assert batched.batch(2.0, [(1.0, 2.0), (3.0,)]).tolist() == [8.0, 7.0]
    assert traces == ["Value"], "the body ran for the first call alone"
