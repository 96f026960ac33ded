"""The statistics of a server."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

RECENT = 1024
"""The number of requests whose latencies are kept."""


@dataclass(frozen=True)
class ServerStats:
    """The statistics of a server.

    Attributes:
        waiting, running: the waiting requests, and the requests that are being processed.
        accepted: all requests that were accepted. Each is waiting, running, answered, failed or cancelled.
        answered, failed: the requests that got a result, and those that got an exception.
        cancelled: the requests that were cancelled before they ran, or in flight.
        overloaded: the requests that were refused because too many were waiting.
        batches: the batches that ran; for samples that ask for values, the syncs.
        retried: the batches that failed and were run again one by one.
        programs: the number of sizes with a compiled program. It does not grow while batches fit the warmed-up
            programs. For samples that ask for values, the number of flights.
        p50, p99: seconds from acceptance to answer: the median and the 99th percentile of the last 1,024 requests.
    """

    waiting: int
    running: int
    accepted: int
    answered: int
    failed: int
    cancelled: int
    overloaded: int
    batches: int
    retried: int
    programs: int
    p50: float
    p99: float


@dataclass
class Counts:
    """The counters of a server; see `ServerStats`."""

    accepted: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    overloaded: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def note(self, is_error: bool, seconds: float) -> None:
        """Counts an answer."""
        self.failed += is_error
        self.answered += not is_error
        self.seconds.append(seconds)

    def latencies(self) -> tuple[float, float]:
        """Returns the median and the 99th percentile, 0 without answers."""
        seconds = list(self.seconds)
        return tuple(np.quantile(seconds, [0.5, 0.99]).tolist()) if seconds else (0.0, 0.0)
