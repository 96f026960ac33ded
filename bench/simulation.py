"""A simulation: what the trade-off would be on an accelerator. Nothing here was measured on one.

An accelerator is three numbers: the time to launch a kernel, the rate of matrix products and the bandwidth of memory. A
step launches a few kernels and reads the weights of its type; a minibatch computes what it computes and moves its
values. Analysis takes as long as it was measured to take on this machine. Rates are never reached in full, which is
left out, as is everything else: this shows where launching, computing or analysing is the limit, not how long it takes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Accelerator(NamedTuple):
    """Parameters, in seconds, operations a second and bytes a second."""

    name: str
    launch: float
    rate: float
    bandwidth: float


ACCELERATORS = (
    Accelerator("slow launches, 5 TFLOP/s, 0.5 TB/s", 10e-6, 5e12, 0.5e12),
    Accelerator("fast launches, 50 TFLOP/s, 2 TB/s", 3e-6, 50e12, 2e12),
)


KERNELS = {"op": 2, "subgraph": 4, "auto": 4}
"""How many a step launches: one gathers operands, one runs an operation; a cell has products, other operations, and
several results to be written. A step of whole graphs launches one for each operation of its graph, and is left out."""


class Simulated(NamedTuple):
    """Seconds of all minibatches of a row."""

    analysis: float
    launching: float
    computing: float
    moving: float

    @property
    def execution(self) -> float:
        return self.launching + max(self.computing, self.moving)

    @property
    def total(self) -> float:
        return self.analysis + self.execution

    @property
    def overlapped(self) -> float:
        """With plans made ahead while the accelerator works."""
        return max(self.analysis, self.execution)


def simulate(accelerator: Accelerator, kernels: int, way: Mapping[str, Any], work: Mapping[str, float]) -> Simulated:
    """What a way of batching (a row's counts and its warm analysis) takes for some work, on an accelerator.

    >>> way = {"steps": 10, "nodes": 200, "distinct": 100, "types": 2, "warm": {"median": 1e-3}}
    >>> simulate(Accelerator("", 1e-5, 1e12, 1e12), 4, way, {"flops": 4e9, "weights": 1e6, "values": 2e6})
    Simulated(analysis=0.001, launching=0.0004, computing=0.002, moving=1.1e-05)
    """
    part = way["distinct"] / max(way["nodes"], 1)
    moved = way["steps"] * work["weights"] / max(way["types"], 1) + 3 * work["values"]  # written once, read twice
    return Simulated(
        way["warm"]["median"],
        way["steps"] * kernels * accelerator.launch,
        part * work["flops"] / accelerator.rate,
        moved / accelerator.bandwidth,
    )
