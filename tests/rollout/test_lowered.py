"""Steps: types of all segments, rounds and chunks."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import jitbatch
from jitbatch import jitbatch as decorated


@decorated
def first(params: Any, x: Any) -> Any:
    return x * params


@decorated
def second(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    return x - y * params, y


def test_types_order_and_rounds() -> None:
    """Half of the samples run `first` before `second`, and others the other way: two rounds, and a merged type."""

    @decorated
    async def mixed(params: Any, sample: Any) -> Any:
        x, is_first = sample
        if await jitbatch.value(is_first):
            x = first(params, x)
            x, y = second(params, x, params)
            return first(params, x) + y
        _, y = second(params, x, x)
        x, _ = second(params, first(params, y), y)
        return x

    samples = [(np.float32(1.5), True), (np.float32(2.5), False), (np.float32(3.5), True)]
    flight = mixed.flight(jnp.float32(2.0), [], room=4)
    tickets = [flight.admit(sample) for sample in samples]
    while len(flight):
        flight.advance()
    wanted = [jitbatch.run(mixed(jnp.float32(2.0), sample)) for sample in samples]
    np.testing.assert_allclose([ticket.result for ticket in tickets], wanted)
    types = flight._engine.types.decided()
    names = [one.kind.cell.name.split(".")[-1] for one in types.types]
    assert (len(names), names.count("second")) == (3, 1), "`second` on a shared value and on a row are one type"
    assert flight._engine.types.decided() is types
    flight.close()


def test_a_buffer_that_is_too_short(monkeypatch: Any) -> None:
    monkeypatch.setattr("jitbatch.rollout.program.BUFFER", 1)

    @decorated
    async def chained(params: Any, xs: Any) -> Any:
        total = 0.0
        for x in xs:
            total = total + first(params, x)
            total, _ = second(params, total, x)
        return total if await jitbatch.value(total > 0) else -total

    samples = [tuple(float(n % 7) for n in range(length)) for length in (3, 30, 50, 1)]
    wanted = [jitbatch.run(chained(0.5, sample)) for sample in samples]
    np.testing.assert_allclose(chained.batch(0.5, samples), wanted, rtol=1e-5)
