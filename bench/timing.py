"""Timing contestants in turns, and counting compilations."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
    """Seconds of some rounds: the median, and between which values half of them lie."""

    median: float
    low: float
    high: float
    rounds: int

    def times(self, factor: float) -> "Timing":
        return Timing(self.median * factor, self.low * factor, self.high * factor, self.rounds)


def summarise(seconds: Sequence[float]) -> Timing:
    """The median and the quartiles.

    >>> summarise([5.0, 1.0, 2.0, 3.0, 4.0])
    Timing(median=3.0, low=2.0, high=4.0, rounds=5)
    """
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return Timing(median, low, high, len(seconds))


def interleaved(
    contestants: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    """The seconds of each contestant, run in turns after one warm-up; every other round goes backwards."""
    for run in contestants.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants.items())
        for name, run in reversed(order) if number % 2 else order:
            start = clock()
            jax.block_until_ready(run())
            times[name].append(clock() - start)
    return {name: summarise(measured) for name, measured in times.items()}


@contextmanager
def compilations() -> Iterator[list[float]]:
    """The seconds of each compilation by XLA meanwhile."""
    durations: list[float] = []

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            durations.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield durations
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
