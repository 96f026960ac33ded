"""What a workload is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from zoo.compare import stack

Params = dict[str, Any]
Tree = Any  # a leaf, or a tuple of trees

HIDDEN = 4
INPUT = 3
VOCAB = 7
CLASSES = 3


@dataclass(frozen=True, eq=False)
class Workload:
    """A per-sample function with its parameters and samples.

    Attributes:
        name: The function's name.
        fun: The undecorated per-sample function, to be decorated with any options.
        batched: The same function as decorated with the default options.
        make_params: Draws the shared argument from a key.
        make_samples: Draws a number of samples.
        float_inputs: Whether the float leaves of the samples are differentiated too.
        low_precision: Whether float16 or bfloat16 values take part, which widens every tolerance.
        size: How many samples the suite asks for.
    """

    name: str
    fun: Callable[[Any, Any], Any]
    batched: Any
    make_params: Callable[[Array], Any]
    make_samples: Callable[[np.random.Generator, int], list[Any]]
    float_inputs: bool = False
    low_precision: bool = False
    size: int = 4

    def draw(self, size: int | None = None, seed: int = 0) -> tuple[Any, list[Any]]:
        """Parameters and samples, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        return self.make_params(jax.random.key(seed)), self.make_samples(rng, size or self.size)

    def loop(self, params: Any, samples: Sequence[Any]) -> Any:
        """The reference: the plain function of one sample, one sample after the other, stacked."""
        return stack([self.fun(params, sample) for sample in samples])

    def __repr__(self) -> str:
        return f"Workload({self.name})"


WORKLOADS: list[Workload] = []


def workload(
    make_params: Callable[[Array], Any],
    make_samples: Callable[[np.random.Generator, int], list[Any]],
    **flags: Any,
) -> Callable[[Any], Any]:
    """Register a decorated function as a workload."""

    def register(batched: Any) -> Any:
        fun = batched.__wrapped__
        WORKLOADS.append(Workload(fun.__name__, fun, batched, make_params, make_samples, **flags))
        return batched

    return register


def named(name: str) -> Workload:
    """The workload of that name."""
    return next(entry for entry in WORKLOADS if entry.name == name)
