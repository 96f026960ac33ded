"""What a function does with each element of a list is recorded once, and copied for the other elements."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from zoo import assert_same, stack

from jitbatch import jitbatch
from jitbatch.record.elements import record_each
from jitbatch.util.compat import current_trace

W = jnp.float32([0.5, -1.0])
SAMPLES = [[np.float32([i, n]) for i in range(n)] for n in (1, 4, 2)]


def each(fun: Any, *lists: Any) -> Any:
    elements = list(zip(*lists, strict=True))
    trace: Any = current_trace()
    return record_each(trace, fun, elements) if hasattr(trace, "ops") else [fun(*one) for one in elements]


def assert_batches(fun: Any) -> None:
    assert_same(jitbatch(fun).batch(W, SAMPLES), stack([fun(W, xs) for xs in SAMPLES]))


def test_the_function_runs_once_and_what_it_closes_over_stays() -> None:
    runs = []

    def fun(w: Any, xs: Any) -> Any:
        def scaled(x: Any, y: Any) -> Any:
            runs.append(x)
            return jnp.sin(w * x) + xs[0] * y, x - xs[-1]  # elements of the list, which are the same for all

        return [sum(column) for column in zip(*each(scaled, xs, xs), strict=True)]

    jitbatch(fun).plan(W, SAMPLES)
    assert len(runs) == len(SAMPLES)
    assert_batches(fun)


def test_elements_of_several_types() -> None:
    def fun(w: Any, xs: Any) -> Any:
        return sum(each(lambda x: jnp.sum(w * x), [*xs, xs[0][0], 2.0, np.float32([1, 2])]))

    assert_batches(fun)


def test_an_element_that_is_returned_as_it_is() -> None:
    def fun(w: Any, xs: Any) -> Any:
        return sum(w * x for x in each(lambda x: x, xs))

    assert_batches(fun)
