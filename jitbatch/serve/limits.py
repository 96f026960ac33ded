"""The limits of a server: the number of requests in a batch, and the number of waiting requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jitbatch.util.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """The limits of a server; see `Batched.serve`."""

    max_batch_size: int = 64
    max_waiting: int = 1024
    max_delay: float = 0.0
    batch_size_fn: Callable[[list[Any]], int] | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_waiting"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name}={value!r} is not a positive number of samples")
        if not isinstance(self.max_delay, int | float) or not self.max_delay >= 0:
            raise ArgumentError(f"max_delay={self.max_delay!r} is not a number of seconds")
        if self.batch_size_fn is not None and not callable(self.batch_size_fn):
            raise ArgumentError(f"batch_size_fn={self.batch_size_fn!r} is not a function of a list of samples")

    @property
    def most(self) -> int:
        """The largest number of samples of a batch. With `batch_size_fn`, a sample has a size of at least one."""
        return min(self.max_batch_size, self.max_waiting)


def how_many(samples: Sequence[Any], held: Sequence[Any], most: int, size_of: Callable[[list[Any]], int]) -> int:
    """Returns the number of leading samples that fit into a batch. It is at least one if `held` is empty.

    Args:
        samples: the waiting samples.
        held: the samples in the batch so far.
        most: the largest size of a batch.
        size_of: the size of a list of samples. It does not decrease with more samples.

    >>> how_many([3, 1, 2, 5], [], 6, sum)
    3
    """
    low, high = 0, len(samples)
    while low < high:
        middle = (low + high + 1) // 2
        if size_of([*held, *samples[:middle]]) <= most:
            low = middle
        else:
            high = middle - 1
    return low if held else max(low, min(1, len(samples)))
