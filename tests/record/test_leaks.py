"""Values that a body keeps cannot be used after its call has ended; what it returns, and what it was given, can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_composite_calls import PARAMS, in_turn, join, leaf_vector

from jitbatch import Static, jitbatch
from jitbatch.util.errors import LeakError

KEEPERS = {
    "an argument": lambda kept, x, h: kept.append(x),
    "what it makes": lambda kept, x, h: kept.append(h),
    "what it computes": lambda kept, x, h: kept.append(h + x),
    "an element": lambda kept, x, h: kept.append(h[0]),
    "what a call returns": lambda kept, x, h: kept.append(join(PARAMS, x, h)),
}


@pytest.mark.parametrize("use", ["call", "operation", "addition", "number", "result"])
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_value_that_a_body_keeps_cannot_be_used_later(keep: Any, use: str, depth: int) -> None:
    """Whether the body calls others or not, and whatever it is that uses the value."""

    def sample(params: Any, x: Any) -> Any:
        kept: list[Any] = []

        @jitbatch
        def walk(params: Any, x: Any, depth: Any) -> Any:
            if depth.value == 1:
                h = x * params["b"]
            else:
                h = join(params, x, x) if depth.value == 2 else walk(params, x, Static(2))
            if depth.value == 3 or depth_of_sample < 3:
                keep(kept, x, h)
            return 2 * h

        depth_of_sample = depth
        y = walk(params, x + 1, Static(depth))
        if use == "call":
            return join(params, kept[-1], y)
        if use == "operation":
            return y + jnp.sin(kept[-1])
        if use == "number":
            return y - 2 * kept[-1]
        if use == "addition":
            return kept[-1] + kept[-1] + 0 * y[0]
        return y, kept[-1]

    with pytest.raises(LeakError, match=r"a value of a call of `.*walk` .*Return the value"):
        jitbatch(sample).batch(PARAMS, [leaf_vector(1), leaf_vector(2)])


class Hidden:
    """What JAX cannot look into."""

    def __init__(self, value: Any):
        self.value = value


def test_what_is_returned_or_given_can_be_used_later() -> None:
    """Also where it passes through several calls, of functions that are kept and of one that is not."""

    @jitbatch
    def inner(params: Any, x: Any) -> Any:
        return x, join(params, x, x), {"x": [x + 1]}

    @jitbatch
    def outer(params: Any, x: Any) -> Any:
        y, h, more = inner(params, x)
        hidden = Hidden(h - x)
        return x, y, h, inner(params, h), more, hidden

    @jitbatch
    def pairs(params: Any, x: Any) -> Any:
        both = jnp.stack([join(params, x, x), x, x])
        return both[1:], both[::2]

    def fun(params: Any, x: Any) -> Any:
        y = x + 1
        total = y
        for _ in range(3):
            a, b, h, (c, d, more), given, hidden = outer(params, y)
            total = total + a + b + h + c + d + more["x"][0] + given["x"][0] + y + hidden.value
            rest, ends = pairs(params, y)
            total = total + rest[0] + rest[1:][0] + ends[1]
            y = join(params, y, total)
        return total + y

    samples = [leaf_vector(1), leaf_vector(2)]
    np.testing.assert_allclose(jitbatch(fun).batch(PARAMS, samples), in_turn(fun, PARAMS, samples), rtol=1e-5)


def test_what_is_closed_over_and_returned_can_be_used_later() -> None:
    def fun(params: Any, x: Any) -> Any:
        y = x + 1

        @jitbatch
        def inner(params: Any, z: Any) -> Any:
            return y, join(params, z, y)

        @jitbatch
        def outer(params: Any, z: Any) -> Any:
            return join(params, inner(params, z)[1], z)

        return outer(params, x) + outer(params, y) + y

    samples = [leaf_vector(1), leaf_vector(2)]
    np.testing.assert_allclose(jitbatch(fun).batch(PARAMS, samples), in_turn(fun, PARAMS, samples), rtol=1e-5)


@pytest.mark.parametrize("use", ["call", "nested", "keyword", "arithmetic", "result"])
def test_a_value_of_another_sample_is_an_error(use: str) -> None:
    """Without it, the row of the other sample would be taken for a row of this one."""
    kept: list[Any] = []

    @jitbatch
    def cell(w: Any, state: Any, x: Any) -> Any:
        return jnp.tanh(w * jax.tree.leaves(state)[0] + x)

    def fun(w: Any, xs: Any) -> Any:
        state = jnp.float32(0)
        for x in xs:
            state = cell(w, state, x)
        kept.append(state)
        if use == "call":
            return cell(w, kept[0], state)
        if use == "nested":
            return cell(w, [{"h": kept[0]}], state)
        if use == "keyword":
            return cell(w, x=kept[0], state=state)
        return state + kept[0] if use == "arithmetic" else kept[0]

    samples = [(0.1, 0.2), (0.3, 0.4, 0.5)]
    with pytest.raises((LeakError, jax.errors.UnexpectedTracerError)) as caught:
        jitbatch(fun).batch(jnp.float32(0.5), samples)
    if use != "arithmetic":
        assert "while sample 1 of" in str(caught.value)
        assert "belongs to the recording of sample 0 of" in str(caught.value)
