"""Samples that ask for values join and leave a running batch, and fail alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import counted_compilations

import jitbatch
from jitbatch import Server, ServerClosed
from jitbatch.record.questions import run
from jitbatch.rollout.flight import Flight
from jitbatch.util.errors import JitbatchError

PARAMS = {
    "w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)) * 0.5, jnp.float32),
    "out": jnp.asarray(np.random.default_rng(1).normal(size=4), jnp.float32),
}
SECONDS = 60
ENDED: list[int] = []


@jitbatch.jitbatch
def cell(params: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ params["w"] + x)


@jitbatch.jitbatch
async def climb(params: Any, x: Any, most: Any) -> Any:
    """Steps until a score is high enough, or there were as many as the length of a tuple."""
    h, steps = jnp.full(4, 0.1), 0
    try:
        for _ in most:
            steps = steps + 1
            h = cell(params, h, x)
            x = x * 0.5
            score = h @ params["out"]
            if await jitbatch.value(score > 0.5):
                break
            if await jitbatch.value(score < -90):
                raise ValueError("too low")
    finally:
        ENDED.append(1)
    return {"h": h, "steps": steps + 0 * score}


def samples(number: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [(float(rng.integers(1, 9)) / 4 - 1, (0.0,) * int(rng.integers(1, 6))) for _ in range(number)]


def check(result: Any, sample: Any, params: Any = PARAMS) -> None:
    want = run(climb(params, *sample))
    np.testing.assert_allclose(result["h"], want["h"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result["steps"], want["steps"])
    assert isinstance(result["h"], np.ndarray)


@pytest.fixture(scope="module")
def warm() -> Iterator[Server]:
    with climb.serve(PARAMS, max_batch_size=8) as server:
        server.warm_up(*map(list, zip(*samples(40), strict=True)))
        yield server


def test_answers_are_those_of_the_plain_function(warm: Server) -> None:
    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[warm(*sample, timeout=SECONDS) for sample in samples(30, 1)])

    for result, sample in zip(asyncio.run(ask_all()), samples(30, 1), strict=True):
        check(result, sample)
    stats = warm.stats()
    assert (stats.waiting, stats.running) == (0, 0)
    assert stats.batches < 30 * 10  # syncs of several at once


def test_nothing_compiles_after_warming_up(warm: Server) -> None:
    for sample in samples(9, 2):
        warm.submit(*sample).result(SECONDS)
    with counted_compilations() as made:
        for count in (1, 3, 8, 20):
            futures = [warm.submit(*sample) for sample in samples(count, count)]
            for future in futures:
                future.result(SECONDS)
    assert not made


def test_arguments_by_name(warm: Server) -> None:
    sample = samples(1, 5)[0]
    check(warm.submit(most=sample[1], x=sample[0]).result(SECONDS), sample)


def test_a_failing_sample_fails_alone(warm: Server) -> None:
    bad = -1000.0, (0.0,) * 5
    with climb.serve({**PARAMS, "out": PARAMS["out"] * 100}) as server:
        futures = [server.submit(*sample) for sample in (*samples(3), (object(), (1.0,)), *samples(3, 1))]
        with pytest.raises(JitbatchError, match="of type object"):
            futures[3].result(SECONDS)
        for future in (*futures[:3], *futures[4:]):
            error = future.exception(SECONDS)
            assert error is None or isinstance(error, ValueError)
        outcome = server.submit(*bad).exception(SECONDS)
        want: BaseException | None = None
        try:
            run(climb({**PARAMS, "out": PARAMS["out"] * 100}, *bad))
        except ValueError as error:
            want = error
        assert type(outcome) is type(want)


def test_a_sync_that_fails_is_begun_again_one_by_one(warm: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = Flight.advance, []

    def advance(flight: Flight) -> Any:
        sizes.append(len(flight))
        if len(flight) > 1:
            raise MemoryError("out of memory")
        return real(flight)

    with climb.serve(PARAMS, max_delay=SECONDS, max_batch_size=4) as server:
        monkeypatch.setattr(Flight, "advance", advance)
        futures = [server.submit(*sample) for sample in samples(4, 3)]
        for future, sample in zip(futures, samples(4, 3), strict=True):
            check(future.result(SECONDS), sample)
        assert sizes[0] == 4
        assert set(sizes[1:]) == {1}
        assert server.stats().retried == 1


def test_new_parameters(warm: Server) -> None:
    sample = samples(1, 7)[0]
    other = {**PARAMS, "w": PARAMS["w"] * 2}
    warm.update(other)
    check(warm.submit(*sample).result(SECONDS), sample, other)
    warm.update(PARAMS)
    check(warm.submit(*sample).result(SECONDS), sample)


def test_closing_cancels_those_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    server = climb.serve(PARAMS, max_batch_size=4)
    real = Flight.advance
    server.submit(*samples(1)[0]).result(SECONDS)

    def advance(flight: Flight) -> Any:
        server._worker.close(drain=False)
        return real(flight)

    monkeypatch.setattr(Flight, "advance", advance)
    future = server.submit(-1.0, (0.0,) * 5)
    assert isinstance(future.exception(SECONDS), ServerClosed)
    server.close()
    assert ENDED


def host(x: Any) -> Any:
    if np.any(np.asarray(x) == 3):
        raise ValueError("the device failed")
    return np.asarray(x) * 2


@jitbatch.jitbatch
def on_host(params: Any, x: Any) -> Any:
    return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential") * params


@jitbatch.jitbatch
async def doubled(params: Any, x: Any) -> Any:
    """Doubles until the result is large: never, for zero."""
    while await jitbatch.value(x < 10):
        x = on_host(params, x)
    return x


def test_a_failure_of_the_device_fails_one_request_alone() -> None:
    with doubled.serve(1.0, max_batch_size=4) as server:
        for _ in range(2):
            answers = [server.submit(x) for x in (1.0, 3.0, 5.0, 20.0)]
            with pytest.raises(Exception, match="the device failed"):
                answers[1].result(SECONDS)
            assert [float(answers[at].result(SECONDS)) for at in (0, 2, 3)] == [16.0, 10.0, 20.0]


def test_samples_whose_callers_have_gone_free_their_slots() -> None:
    server = doubled.serve(1.0, max_batch_size=2)
    server.warm_up([1.0, 5.0])

    async def main() -> float:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await server(0.0, timeout=0.05)
        return float(await server(1.0, timeout=SECONDS))

    assert asyncio.run(main()) == 16.0
    endless = server.submit(0.0)
    while not endless.running():
        time.sleep(0.001)
    assert not endless.cancel()
    with pytest.raises(CancelledError):
        endless.result(SECONDS)
    server.close()
    stats = server.stats()
    assert (stats.answered, stats.cancelled, stats.running) == (1, 3, 0)


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_closing_ends_after_its_timeout(is_asynchronous: bool) -> None:
    server = doubled.serve(1.0, max_batch_size=2)
    endless = server.submit(0.0)
    if is_asynchronous:
        asyncio.run(server.aclose(timeout=0.05))
    else:
        server.close(timeout=0.05)
    with pytest.raises(ServerClosed):
        endless.result(SECONDS)


def test_samples_that_raise_may_warm_up() -> None:
    @jitbatch.jitbatch
    async def positive(params: Any, x: Any) -> Any:
        if await jitbatch.value(x < 0):
            raise ValueError("negative")
        return x * params

    with positive.serve(2.0, max_batch_size=4) as server:
        server.warm_up([-1.0, 1.0, 2.0])
        assert float(server.submit(3.0).result(SECONDS)) == 6.0
        with pytest.raises(ValueError, match="negative"):
            server.warm_up([-1.0, -2.0])
