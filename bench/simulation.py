"""A simulation: what the trade-off would be on an accelerator. Nothing here was measured on one.

An accelerator is three numbers: the time to launch a kernel, the rate of matrix products and the bandwidth of memory. A
step launches a few kernels and reads the weights of its type; a minibatch computes what it computes and moves its
values. Analysis takes as long as it was measured to take on this machine. Rates are never reached in full, which is
left out, as is everything else: this shows where launching, computing or analysing is the limit, not how long it takes.

    python bench/simulation.py [--launch SECONDS] [--rate FLOPS] [--bandwidth BYTES] [--file RESULTS]

prints what the ways of batching in a result file of `tradeoff.py` would take on an accelerator with these numbers.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
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
several results to be written."""


def kernels_of(way: str, row: Mapping[str, Any]) -> float:
    """How many kernels a step of a way launches. A step of whole graphs launches those of each cell in the graph."""
    granularity = way.split(",")[0]
    if granularity != "graph":
        return KERNELS[granularity]
    nodes = max(values["nodes"] for name, values in row["ways"].items() if name.startswith(("subgraph", "auto, auto")))
    return KERNELS["subgraph"] * nodes / row["samples"]


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


def simulate(accelerator: Accelerator, kernels: float, way: Mapping[str, Any], work: Mapping[str, float]) -> Simulated:
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


def main() -> None:
    import results  # what follows needs more than the simulation itself
    from parts.tradeoff import simulation_table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", type=float, default=ACCELERATORS[0].launch, help="seconds")
    parser.add_argument("--rate", type=float, default=ACCELERATORS[0].rate, help="operations a second")
    parser.add_argument("--bandwidth", type=float, default=ACCELERATORS[0].bandwidth, help="bytes a second")
    parser.add_argument("--file", type=Path, default=results.FOLDER / "tradeoff-full.json")
    options = parser.parse_args()
    accelerator = Accelerator("an accelerator", options.launch, options.rate, options.bandwidth)
    print("A simulation, not a measurement; milliseconds.\n")
    print(simulation_table([row for row in results.read(options.file)["rows"] if "ways" in row], [accelerator]))


if __name__ == "__main__":
    main()
