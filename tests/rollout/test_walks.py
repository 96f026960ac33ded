"""Walks: what was recorded once is known, also in part, and caches may be dropped at any time."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch
from jitbatch import jitbatch as decorated
from jitbatch.rollout import walks
from jitbatch.util import passes
from jitbatch.util.errors import QuestionError


@decorated
async def digits(ten: Any, x: Any) -> Any:
    total = x * 0
    while (rest := await jitbatch.value({"rest": x // ten, "digit": x % ten}))["rest"]:
        total = total + rest["digit"] * jnp.ones((), jnp.int32)
        x = x // ten
    return total + x


SAMPLES = [123, 45, 6, 123, 999]
WANTED = [6, 9, 6, 6, 27]


def test_known_ways() -> None:
    assert digits.batch(10, SAMPLES).tolist() == WANTED
    again = digits.rollout(10, SAMPLES)
    assert (again.outputs.tolist(), again.times.recorded) == (WANTED, 0)


def test_without_caches() -> None:
    with passes.without_caches():
        assert digits.batch(10, SAMPLES).tolist() == WANTED


def test_caches_dropped_on_the_way(monkeypatch: Any) -> None:
    monkeypatch.setattr(walks, "MAX_SEGMENTS", 3)
    afresh = decorated(digits.__wrapped__.asynchronous)  # type: ignore[attr-defined]
    rolled = afresh.rollout(10, SAMPLES)
    assert rolled.outputs.tolist() == WANTED
    assert afresh.batch(10, SAMPLES, decisions=rolled.decisions).tolist() == WANTED
    flight = afresh.flight(10, [], room=8)
    tickets = [flight.admit(sample) for sample in SAMPLES]
    flight.advance()
    jitbatch.clear_caches()
    while len(flight):
        flight.advance()
    assert [int(ticket.result) for ticket in tickets] == WANTED
    flight.close()


def test_ways_that_depend_on_something_else() -> None:
    """The known way of a sample ends at a new answer; then its code runs again."""
    asks = True

    @decorated
    async def fickle(one: Any, x: Any) -> Any:
        if asks:
            x = x + await jitbatch.value(x > one)
        return x + one

    assert fickle.batch(1.0, [2.0]).tolist() == [4.0]
    asks = False
    with pytest.raises(QuestionError, match=r"sample 0 of .* ends where it asked at .*test_walks.py:\d+ before"):
        fickle.batch(1.0, [0.5])


def test_constants_and_shared_values_as_rows() -> None:
    @decorated
    def pick(table: Any, row: Any, index: Any) -> Any:
        return table[index] + row

    @decorated
    async def chosen(table: Any, x: Any) -> Any:
        index = await jitbatch.value(x % 3)
        return pick(table, table[0], index), x * np.float32(2), table[1], 7

    samples = [4, 5, 6, 4]
    table = jnp.arange(6.0).reshape(3, 2)
    rolled = chosen.rollout(table, samples)
    wanted = [jitbatch.run(chosen(table, sample)) for sample in samples]
    planned = chosen.batch(table, samples, decisions=rolled.decisions)
    for found in (rolled.outputs, planned):
        for column, expected in zip(found, zip(*wanted, strict=True), strict=True):
            np.testing.assert_allclose(column, np.stack(expected))
