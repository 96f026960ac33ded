"""Stretches: foreseen answers save syncs, and change no result, whether they are right or wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES, planning_by

import jitbatch
from jitbatch import jitbatch as decorated
from jitbatch.rollout import stretches
from jitbatch.rollout.segments import Answered

SAMPLES = [float(n % 5) for n in range(12)]


@decorated
def move(params: Any, h: Any, x: Any) -> Any:
    return jnp.sin(h * params["w"] + x)


def wandering() -> Any:
    """A function whose samples take many ways: truth values, integers and trees are asked for."""

    @decorated
    async def wander(params: Any, x: Any) -> Any:
        h, total = move(params, x, 1.0), 0.0
        for _ in range(6):
            total = total + h
            if await jitbatch.value(h > params["least"]):
                h = move(params, h, x)
            else:
                for _ in range(await jitbatch.value(jnp.int32(3 * jnp.abs(h)))):
                    h = move(params, h, 0.5)
        both = await jitbatch.value({"h": h, "total": total})
        return total * h + (1.0 if both["h"] > both["total"] else 0.0)

    return wander


def params_of(w: float) -> dict[str, Any]:
    return {"w": jnp.float32(w), "least": jnp.float32(0.3)}


@pytest.mark.parametrize("core", CORES)
def test_right_and_wrong_guesses_change_nothing(core: str) -> None:
    with planning_by(core):
        wander = wandering()
        for w in (1.5, 1.5, 1.7, 1.5, 2.3, 2.3):
            params = params_of(w)
            rolled = wander.rollout(params, SAMPLES)
            alone = decorated(wander.__wrapped__.asynchronous).rollout(params, SAMPLES)
            np.testing.assert_allclose(rolled.outputs, [jitbatch.run(wander(params, x)) for x in SAMPLES], rtol=1e-4)
            assert [answers[:-1] for answers in rolled.decisions.answers] == [
                answers[:-1] for answers in alone.decisions.answers
            ], "the last answers are floats, which may differ in the last bits"
        assert rolled.syncs < alone.syncs, "what was right before is foreseen"
        gradient = jax.grad(lambda p: wander.batch(p, SAMPLES).sum())(params)
        wanted = jax.grad(lambda p: sum(jitbatch.run(wander(p, x)) for x in SAMPLES))(params)
        np.testing.assert_allclose(gradient["w"], wanted["w"], rtol=1e-3)


def countdown(cell: Any) -> Any:
    """Samples that run `cell` until it is 0, so a foreseen way goes on as long as the last one did."""

    @decorated
    async def counted(one: Any, x: Any) -> Any:
        while await jitbatch.value(x > 0):
            x = cell(one, x)
        return x

    return counted


@decorated
def less(one: Any, x: Any) -> Any:
    return x - one


def test_known_ways_take_few_syncs() -> None:
    counted = countdown(less)
    assert counted.rollout(1, [40, 40]).syncs == 42
    again = counted.rollout(1, [40, 40])
    assert again.syncs == 3, "8, 16 and 18 of its 42 segments"
    assert (again.times.segments, again.times.recorded) == (84, 0)
    wrong = counted.rollout(1, [37, 3])
    assert wrong.outputs.tolist() == [0, 0]
    assert wrong.decisions.answers == [[True] * 37 + [False], [True] * 3 + [False]]


def test_what_may_not_run_in_vain_waits_for_its_answer() -> None:
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return np.float32(x)

    @decorated
    def called(one: Any, x: Any) -> Any:
        return jax.pure_callback(note, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential") - one

    @decorated
    def printed(one: Any, x: Any) -> Any:
        jax.debug.callback(note, x)
        return x - one

    @decorated
    def looped(one: Any, x: Any) -> Any:
        """Would never end for an `x` that is 0 or less."""
        return jax.lax.while_loop(lambda y: y != x - one, lambda y: y - jnp.sign(x) * one, x)

    for cell in (called, printed, looped):
        counted = countdown(cell)
        for x in (6.0, 6.0, 2.0):
            rolled = counted.rollout(jnp.float32(1.0), [jnp.float32(x)])
            assert rolled.outputs.tolist() == [0.0]
            assert rolled.syncs > x
    jax.effects_barrier()
    assert min(seen) == 1.0, "only what samples have"


def test_no_guesses_where_nan_is_an_error() -> None:
    @decorated
    async def root(one: Any, x: Any) -> Any:
        return move_root(one, x) if await jitbatch.value(x > 0) else x

    @decorated
    def move_root(one: Any, x: Any) -> Any:
        return jnp.log(x) * one

    assert root.rollout(1.0, [1.0]).outputs.tolist() == [0.0]
    assert root.rollout(1.0, [1.0]).syncs == 1
    with jax.debug_nans(True):
        rolled = root.rollout(1.0, [-1.0])
    assert (rolled.syncs, rolled.outputs.tolist()) == (2, [-1.0])


def test_an_error_comes_where_the_sample_is() -> None:
    """A foreseen way runs no Python, so it has no error; a sample that leaves it gets its own."""

    @decorated
    async def strict(one: Any, x: Any) -> Any:
        while await jitbatch.value(x > 0):
            x = less(one, x)
            if await jitbatch.value(x == 13):
                raise ValueError("thirteen")
        return x

    strict.batch(2, [20, 20])
    with pytest.raises(ValueError, match="thirteen") as raised:
        strict.batch(2, [20, 19])
    assert any("sample 1 of `" in note for note in raised.value.__notes__)
    flight = strict.flight(2, [], room=4)
    tickets = [flight.admit(x) for x in (20, 19, 20)]
    flight.advance()
    flight.cancel(tickets[2])
    while len(flight):
        flight.advance()
    assert tickets[0].result == 0
    assert isinstance(tickets[1].error, ValueError)
    assert tickets[2].done
    assert (flight._held.rows == -1).all()
    flight.close()


@contextmanager
def limits(first: int, most: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitbatch.rollout.walks.FIRST", first)
        patch.setattr("jitbatch.rollout.walks.MOST", most)
        yield


def test_small_arenas_have_no_room_for_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitbatch.rollout.arenas.LEAST_ROWS", 1024)
    monkeypatch.setattr("jitbatch.rollout.arenas.MOST_ROWS", 1024)
    monkeypatch.setattr("jitbatch.rollout.arenas.TRANSFERS", ((1 << 62, (16, 4)),))
    counted = countdown(less)
    with limits(16, 16):
        for _ in range(2):
            rolled = counted.rollout(1, [9] * 64)
            assert rolled.outputs.tolist() == [0] * 64
        assert rolled.syncs == 3, "10 and 9 rows for each of 64 samples are more than half of an arena, 8 are not"
        assert counted.rollout(1, [9] * 8).syncs == 1


def test_limits() -> None:
    counted = countdown(less)
    with limits(1, 1):
        for _ in range(2):
            assert counted.rollout(1, [9]).syncs == 11
    with limits(4, 4):
        assert counted.rollout(1, [9]).syncs == 3


def test_likely_answers() -> None:
    answered = Answered()
    assert answered.likely() is None
    for answer in (True, True, False, True):
        answered.note(answer, 1)
    assert answered.likely() == (True, 0.75)
    answered.note(False, 2 * Answered.MOST)
    answer, share = answered.likely() or (None, 0.0)
    assert (answer, share > 0.99) == (False, True)
    for answer in range(100):
        answered.note(answer, 1)
    assert len(answered._counts) <= Answered.DISTINCT


def test_unlikely_ways_are_not_foreseen() -> None:
    counted = countdown(less)
    counted.batch(1, [0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert stretches.LEAST_CHANCE == 0.5
    flight = counted.flight(1, [], room=4)
    (first,) = flight._engine.walks.find([flight.admit(5).walker.key])
    segments, guesses = stretches.foreseen(first, 9, flight._engine.walks._segments.get)
    assert guesses == [True], "6 of 9 go on, and 4 of 9 once more"
    assert len(segments) == 2
    flight.close()
