"""Flights: results, decisions and plans of samples that look at values are those of the plain loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import counted_compilations

import jitbatch
from jitbatch import jitbatch as decorated
from jitbatch.plan.compiles import RecompileWarning
from jitbatch.record.questions import run
from jitbatch.util.errors import DecisionError, PlanError, QuestionError

PARAMS = {
    "w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)) * 0.5, jnp.float32),
    "out": jnp.asarray(np.random.default_rng(1).normal(size=4), jnp.float32),
    "first": jnp.full(4, 0.1),
}
SAMPLES = [(3.0, 1), (0.2, 4), (-5.0, 3), (7.0, 2), (3.0, 1)]


@decorated
def cell(params: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ params["w"] + x)


@decorated
async def climb(params: Any, sample: Any) -> Any:
    """Steps until a score is high enough; a bare running total and a learned first state go along."""
    x, least = sample
    h, total = params["first"], 0.0
    for _ in range(5):
        h = cell(params, h, x)
        total = total + h @ params["out"]
        x = x * 0.5
        if await jitbatch.value(h @ params["out"] * least > 0.5):
            break
    return h * total


def loop(params: Any, samples: Any = SAMPLES) -> Any:
    return jnp.stack([run(climb(params, sample)) for sample in samples])


def test_a_batch_is_the_loop() -> None:
    np.testing.assert_allclose(climb.batch(PARAMS, SAMPLES), loop(PARAMS), rtol=1e-5)


def test_decisions_and_syncs_are_told() -> None:
    afresh = decorated(climb.__wrapped__.asynchronous)  # type: ignore[attr-defined]
    rolled = afresh.rollout(PARAMS, SAMPLES)
    assert rolled.syncs == max(map(len, rolled.decisions.answers)) + 1
    assert len({len(answers) for answers in rolled.decisions.answers}) > 1
    assert rolled.decisions[0] == rolled.decisions[4]


def test_a_known_way_runs_no_python() -> None:
    count = 0

    @decorated
    async def counted(params: Any, x: Any) -> Any:
        nonlocal count
        count += 1
        while await jitbatch.value(x > 1):
            x = x * params
        return x

    first = counted.rollout(0.5, [4.0, 8.0])
    assert count == 2
    again = counted.rollout(0.5, [8.0, 4.0, 12.0])
    assert (count, again.times.recorded) == (3, 2), "12.0 leaves the known ways at its fourth answer"
    np.testing.assert_array_equal(again.outputs, [1.0, 1.0, 0.75])
    assert first.outputs.tolist() == [1.0, 1.0]


def test_a_plan_of_decisions_is_made_of_what_was_recorded_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = climb.rollout(PARAMS, SAMPLES)
    monkeypatch.setattr("jitbatch.record.context.build", lambda *_: pytest.fail("recorded again"))
    plan = climb.plan(PARAMS, SAMPLES, decisions=rolled.decisions)
    np.testing.assert_allclose(climb.batch(PARAMS, plan), rolled.outputs, rtol=1e-5)


def test_a_recording_with_decisions_is_that_of_the_way() -> None:
    rolled = climb.rollout(PARAMS, SAMPLES)
    plan = climb.plan(PARAMS, SAMPLES, decisions=rolled.decisions)
    afresh = decorated(climb.__wrapped__.asynchronous)  # type: ignore[attr-defined]
    recorded = afresh.plan(PARAMS, SAMPLES, decisions=rolled.decisions)
    assert str(plan) == str(recorded)


def test_a_gradient_is_that_of_the_loop() -> None:
    found = jax.grad(lambda params: jnp.sum(climb.batch(params, SAMPLES) ** 2))(PARAMS)
    wanted = jax.grad(lambda params: jnp.sum(loop(params) ** 2))(PARAMS)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-5)
    _, tangent = jax.jvp(lambda params: climb.batch(params, SAMPLES), (PARAMS,), (PARAMS,))
    _, reference = jax.jvp(loop, (PARAMS,), (PARAMS,))
    np.testing.assert_allclose(tangent, reference, rtol=1e-4, atol=1e-5)


def test_a_step_takes_decisions_with_samples() -> None:
    @jitbatch.jit
    def step(params: Any, samples: Any, decisions: Any) -> Any:
        return jax.value_and_grad(lambda p: jnp.sum(climb.batch(p, samples, decisions=decisions)))(params)

    for samples in (SAMPLES, SAMPLES[::-1]):
        rolled = climb.rollout(PARAMS, samples)
        value, gradient = step(PARAMS, samples, rolled.decisions)
        np.testing.assert_allclose(value, loop(PARAMS).sum(), rtol=1e-5)
    wanted = jax.grad(lambda params: jnp.sum(loop(params)))(PARAMS)
    np.testing.assert_allclose(gradient["w"], wanted["w"], rtol=1e-4, atol=1e-5)


def test_samples_join_and_leave_in_flight() -> None:
    flight = climb.flight(PARAMS, [], room=8)
    tickets = [flight.admit(SAMPLES[0])]
    done: list[Any] = []
    for sample in SAMPLES[1:]:
        done += flight.advance()
        tickets.append(flight.admit(sample))
    while len(flight):
        done += flight.advance()
    assert sorted(ticket.index for ticket in done) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([ticket.result for ticket in tickets], loop(PARAMS), rtol=1e-5)
    assert flight.advance() == []
    flight.close()


def test_new_shared_arguments_come_in_at_the_next_sync() -> None:
    flight = climb.flight(PARAMS, [], room=4)
    flight.admit(SAMPLES[0])
    while len(flight):
        flight.advance()
    other = jax.tree.map(lambda leaf: leaf * 0.7, PARAMS)
    flight.update(other)
    ticket = flight.admit(SAMPLES[1])
    while len(flight):
        flight.advance()
    np.testing.assert_allclose(ticket.result, loop(other)[1], rtol=1e-5)
    with pytest.raises(PlanError, match="differ in structure"):
        flight.update({**PARAMS, "more": 1.0})
    for sample in SAMPLES[:4]:
        flight.admit(sample)
    with pytest.raises(PlanError, match="no room in this flight: 4 samples"):
        flight.admit(SAMPLES[4])
    flight.close()
    assert len(flight) == 0


def test_more_samples_than_room_and_small_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitbatch.rollout.rollout.MOST_IN_FLIGHT", 4)
    monkeypatch.setattr("jitbatch.methods.asynchronous.MOST_IN_FLIGHT", 4)
    monkeypatch.setattr("jitbatch.rollout.arenas.LEAST_ROWS", 256)
    monkeypatch.setattr("jitbatch.rollout.arenas.MOST_ROWS", 256)
    monkeypatch.setattr("jitbatch.rollout.arenas.TRANSFERS", ((1 << 62, (16, 4)),))
    monkeypatch.setattr("jitbatch.rollout.held.VALUES", 2)
    afresh = decorated(climb.__wrapped__.asynchronous)  # type: ignore[attr-defined]
    samples = [(0.1 * number, 1 + number % 3) for number in range(40)]
    np.testing.assert_allclose(afresh.batch(PARAMS, samples), loop(PARAMS, samples), rtol=1e-4, atol=1e-6)


def test_an_error_names_the_sample_and_cancels_the_others() -> None:
    ended = []

    @decorated
    async def fails(one: Any, x: Any) -> Any:
        try:
            for turn in range(4):
                if await jitbatch.value(x < turn):
                    raise ValueError("too small")
            return x
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="too small") as raised:
        fails.batch(1.0, [5.0, 7.0, 1.0, 9.0])
    assert any("raised while sample 2 of `" in note for note in raised.value.__notes__)
    assert len(ended) >= 2, "of those that ran Python"
    flight = fails.flight(1.0, [], room=4)
    tickets = [flight.admit(x) for x in (5.0, 1.0)]
    while len(flight):
        flight.advance()
    assert tickets[0].result == 5.0
    with pytest.raises(ValueError, match="too small"):
        _ = tickets[1].result
    flight.close()


def test_a_cancelled_sample_ends_where_it_waits() -> None:
    ended = []

    @decorated
    async def waits(one: Any, x: Any) -> Any:
        try:
            while await jitbatch.value(x > 0):
                x = x - one
        finally:
            ended.append(True)
        return x

    flight = waits.flight(1.0, [], room=4)
    first, second = flight.admit(50.0), flight.admit(2.0)
    flight.advance()
    flight.cancel(first)
    assert ended == [True]
    assert first.done
    assert len(flight) == 1
    while len(flight):
        flight.advance()
    assert second.result == 0.0
    flight.cancel(second)
    assert (flight._held.rows == -1).all(), "no row is left behind"
    flight.close()


def test_changed_settings_are_refused() -> None:
    @decorated
    async def precise(one: Any, x: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return x if await jitbatch.value(x > one) else one

    for samples in ([3.0], [3.0], [3.0, 4.0]):  # nothing of it is known afterwards
        with pytest.raises(QuestionError, match=r"settings .* were changed across a question at .*test_flight.py:\d+"):
            precise.batch(1.0, samples)


def test_what_needs_decisions_says_so() -> None:
    for asked in (climb.plan, climb.explain, climb.check, lambda *a: jax.jit(climb.batch)(PARAMS, jnp.ones((2, 2)))):
        with pytest.raises(DecisionError, match=r"looks at values, so .* Roll out first, and pass the decisions"):
            asked(PARAMS, SAMPLES)
    with pytest.raises(DecisionError, match=r"inside of jax\.vmap or"):
        jax.vmap(lambda scale: climb.batch(jax.tree.map(lambda leaf: leaf * scale, PARAMS), SAMPLES))(jnp.ones(2))

    @jitbatch.jit
    def step(params: Any, samples: Any) -> Any:
        return climb.batch(params, samples)

    with pytest.raises(DecisionError, match="a step that has samples and decisions as arguments"):
        step(PARAMS, SAMPLES)


@pytest.mark.parametrize("out", ["list", "ragged"])
def test_outputs_of_other_forms(out: str) -> None:
    @decorated(out=out)
    async def digits(ten: Any, x: Any) -> Any:
        found = []
        while await jitbatch.value(x > 0):
            found.append({"digit": x % ten, "half": x / 2})
            x = x // ten
        return found

    rolled = digits.rollout(10, [123, 0, 45])
    outputs = rolled.outputs if out == "list" else rolled.outputs.to_list()
    assert [[item["digit"].tolist() for item in items] for items in outputs] == [[3, 2, 1], [], [5, 4]]
    planned = digits.batch(10, digits.plan(10, [123, 0, 45], decisions=rolled.decisions))
    planned = planned if out == "list" else planned.to_list()
    assert jax.tree.map(float, planned) == jax.tree.map(float, outputs)


def test_keys_arrays_and_sums_of_many_terms() -> None:
    @decorated
    async def noisy(scale: Any, sample: Any) -> Any:
        key, rows = sample
        total = sum(cell({"w": jnp.eye(2)}, row, 0.5) for row in rows)
        drawn = await jitbatch.value({"bits": jax.random.uniform(key, (2,)), "top": total.max()})
        assert isinstance(drawn["top"], float)
        assert drawn["bits"].shape == (2,)
        return scale * total + drawn["bits"] + (jax.random.uniform(key) if drawn["top"] > 1 else 0.0)

    samples = [(jax.random.key(n), np.full((n, 2), 0.3, np.float32)) for n in (1, 2, 3, 5)]
    wanted = [run(noisy(2.0, sample)) for sample in samples]
    np.testing.assert_allclose(noisy.batch(2.0, samples), np.stack(wanted), rtol=1e-5)


def test_ever_new_kinds_of_cells_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitbatch.rollout.engine.MANY_CHANGES", 3)

    @decorated
    def times(params: Any, x: Any, factor: Any) -> Any:
        return x + jnp.ones(factor.value).sum()

    @decorated
    async def grow(params: Any, x: Any) -> Any:
        for factor in range(4):
            x = times(params, x, jitbatch.Static(factor))
            await jitbatch.value(x)
        return x

    message = (
        r"rollouts of `.*grow` .* compiled 3 times, the last time for the new cell type `.*times` at .*test_flight.py"
    )
    with pytest.warns(RecompileWarning, match=message) as caught:
        grow.rollout(2.0, [1.0, 2.0])
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_shared_results_compile_once() -> None:
    """Also if they are needed in another order, and after new shared arguments."""

    @decorated
    async def grow(params: Any, x: Any) -> Any:
        first = jnp.tanh(params["w"]) @ params["out"]
        x = cell(params, first * x, x)
        if await jitbatch.value(x[0] > 0):
            x = cell(params, jnp.sin(params["w"]) @ params["out"], x[0])
        await jitbatch.value(x[0])
        return x

    xs, larger = [1.0, -2.0, 3.0], jax.tree.map(lambda leaf: leaf * 2, PARAMS)
    fewer = grow.flight(PARAMS, [], room=4)
    run_all(fewer, xs)
    with counted_compilations() as compilations:
        grow.rollout(PARAMS, xs)
        fewer.update(larger)
        run_all(fewer, xs)
    assert not compilations
    fewer.close()


def run_all(flight: Any, xs: list[float]) -> None:
    for x in xs:
        flight.admit(x)
    while len(flight):
        flight.advance()


BROKEN = {"device": False}


def host(x: Any) -> Any:
    if BROKEN["device"]:
        raise ValueError("the device failed")
    return np.asarray(x) * 2


@decorated
def on_host(params: Any, x: Any) -> Any:
    return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential") * params


@decorated
async def doubled(params: Any, x: Any) -> Any:
    while await jitbatch.value(x < 10):
        x = on_host(params, x)
    return x


@pytest.mark.parametrize("failure", ["of the device", "an interrupt"])
def test_a_sync_that_fails_leaves_nothing_broken(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(doubled.batch(1.0, [1.0, 3.0, 20.0]), [16.0, 12.0, 20.0])
    if failure == "of the device":
        monkeypatch.setitem(BROKEN, "device", True)
    else:

        def interrupted(arenas: Any, program: Any, buffer: Any, shared: Any, classes: Any) -> None:
            program({class_id: arenas.arrays[class_id] for class_id in classes}, buffer, shared)  # donates them
            raise KeyboardInterrupt

        monkeypatch.setattr("jitbatch.rollout.arenas.Arenas.run", interrupted)
    flight = doubled.flight(1.0, [], room=4)
    with pytest.raises(BaseException, match=r"the device failed|^$"):
        run_all(flight, [1.0])
    with pytest.raises(PlanError, match=r"an earlier sync of this flight of `doubled` .* has failed"):
        flight.advance()
    flight.close()
    with pytest.raises(BaseException, match=r"the device failed|^$"):
        doubled.batch(1.0, [1.0, 3.0, 20.0])
    monkeypatch.undo()
    for _ in range(2):
        np.testing.assert_array_equal(doubled.batch(1.0, [1.0, 3.0, 20.0]), [16.0, 12.0, 20.0])


def test_an_empty_batch() -> None:
    assert climb.batch(PARAMS, SAMPLES).shape == (5, 4)
    rolled = climb.rollout(PARAMS, [])
    assert rolled.outputs.shape == (0, 4)
    assert len(rolled.decisions) == rolled.syncs == 0
