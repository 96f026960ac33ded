"""Timing contestants in turns, and counting compilations."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


def interleaved(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median seconds of each contestant, run in turns after one warm-up."""
    for run in contestants.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(measured) for name, measured in times.items()}


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
