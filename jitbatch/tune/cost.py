"""A small cost model: how long a batch would take, from counts alone.

The predictions need not be exact. They are there to tell a batch that gains from batching from one that cannot, and to
tell when a compilation has paid for itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jitbatch.execute.fused.widths import MOST_WIDTHS
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Kind
from jitbatch.tune.flops import flops_of
from jitbatch.util.caches import Cache


@dataclass(frozen=True)
class Costs:
    """What things cost on a backend, in seconds.

    Attributes:
        call: a jitted call.
        step: a step of the dispatch executor.
        launch: a chunk of the fused executor.
        operation: an equation of a program that is run.
        flop, byte: a floating point operation; a byte that is read or written.
        plan, node: planning a batch of known structures, and each of its nodes.
        record: recording a node of a structure that is not known.
        program, equation: compiling a program, and each of its equations.
    """

    call: float
    step: float
    launch: float
    operation: float
    flop: float
    byte: float
    plan: float
    node: float
    record: float
    program: float
    equation: float


ON_CPU = Costs(
    call=20e-6, step=150e-6, launch=10e-6, operation=5e-7, flop=2e-11, byte=2.5e-11, plan=1e-3, node=1e-6, record=20e-6,
    program=0.3, equation=2e-3,
)  # fmt: skip
"""Of a CPU with two cores, jax 0.10."""

ON_ACCELERATOR = Costs(
    call=40e-6, step=200e-6, launch=20e-6, operation=3e-6, flop=1e-13, byte=2e-12, plan=1e-3, node=1e-6, record=20e-6,
    program=1.0, equation=5e-3,
)  # fmt: skip
"""Of a large GPU or TPU; guessed from data sheets, not measured."""


def known_costs() -> Costs:
    """The costs on the running backend."""
    return ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR


class Work(NamedTuple):
    """What a node needs: operations, bytes of its rows, bytes of what its kind is bound to; and equations."""

    flops: int
    row_bytes: int
    bound_bytes: int
    equations: int


_work = Cache(8192, first=1024)


def work_of(kind: Kind) -> Work:
    """What a node of a kind needs, estimated from its jaxpr."""

    def estimate() -> Work:
        cell = kind.cell
        inputs = list(zip(map(_bytes, cell.in_avals), kind.vmapped, strict=True))
        return Work(
            flops=flops_of(cell.jaxpr),
            row_bytes=sum(size for size, is_row in inputs if is_row) + sum(map(_bytes, cell.out_avals)),
            bound_bytes=sum(size for size, is_row in inputs if not is_row),
            equations=max(len(cell.jaxpr.jaxpr.eqns), 1),
        )

    return _work.get_or_make(kind, estimate)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)


class Load(NamedTuple):
    """What a batch needs, whatever runs it.

    Attributes:
        samples, structures, nodes, kinds: how many there are.
        steps: how many there are at least (see `ir/ranks`).
        flops: operations.
        row_bytes: bytes of rows.
        step_bytes, sample_bytes, structure_bytes: of what kinds are bound to, read once for each step; for each node of
            each sample; for each node of each structure.
        kind_equations, structure_equations, sample_equations: of all kinds; of all nodes of all structures; of all
            nodes of all samples.
        has_effects: whether some node has.
    """

    samples: int
    structures: int
    nodes: int
    kinds: int
    steps: int
    flops: float
    row_bytes: float
    step_bytes: float
    sample_bytes: float
    structure_bytes: float
    kind_equations: int
    structure_equations: int
    sample_equations: int
    has_effects: bool


def load_of(graphs: Sequence[Graph]) -> Load:
    """What a batch of at least one sample needs. Calls that dedupe would merge are counted."""
    kinds = graphs[0].tables.kinds
    distinct = list(dict.fromkeys(graphs))
    size = 1 + max(int(graph.kinds_present.max(initial=0)) for graph in distinct)
    count, once, layers = np.zeros((3, size), np.int64)
    np.add.at(count, np.concatenate([graph.kinds_present for graph in graphs]), _joined(graphs, 0))
    present = np.concatenate([graph.kinds_present for graph in distinct])
    np.add.at(once, present, _joined(distinct, 0))
    np.maximum.at(layers, present, _joined(distinct, 1))
    numbers = np.flatnonzero(count)
    count, once, layers = count[numbers], once[numbers], layers[numbers]
    work = np.array([work_of(kinds[number]) for number in numbers.tolist()], float).reshape(-1, 4)
    flops, row_bytes, bound_bytes, equations = work.T
    return Load(
        samples=len(graphs),
        structures=len(distinct),
        nodes=int(count.sum()),
        kinds=len(numbers),
        steps=int(layers.sum()),
        flops=float(count @ flops),
        row_bytes=float(count @ row_bytes),
        step_bytes=float(layers @ bound_bytes),
        sample_bytes=float(count @ bound_bytes),
        structure_bytes=float(once @ bound_bytes),
        kind_equations=int(equations.sum()),
        structure_equations=int(once @ equations),
        sample_equations=int(count @ equations),
        has_effects=any(kinds[number].cell.has_effects for number in numbers.tolist()),
    )


def _joined(graphs: Sequence[Graph], column: int) -> np.ndarray:
    return np.concatenate([graph.kind_sizes[column] for graph in graphs])


# How long a batch takes that is run again and again, planning included.


def fused_seconds(load: Load, costs: Costs) -> float:
    compute = load.flops * costs.flop + (load.row_bytes + load.step_bytes) * costs.byte
    return _planning(load.nodes, costs) + costs.call + load.steps * costs.launch + compute


def dispatch_seconds(load: Load, costs: Costs) -> float:
    compute = load.flops * costs.flop + (load.row_bytes + load.step_bytes) * costs.byte
    return _planning(load.nodes, costs) + load.steps * costs.step + compute


def whole_seconds(load: Load, costs: Costs) -> float:
    """Samples of one structure in one vmapped call: a structure's nodes run one by one, each over all its samples."""
    compute = load.flops * costs.flop + (load.row_bytes + load.structure_bytes) * costs.byte
    calls = load.structures * costs.step + load.structure_equations * costs.operation
    return _planning(load.samples, costs) + calls + compute


def per_sample_seconds(load: Load, costs: Costs) -> float:
    compute = load.flops * costs.flop + (load.row_bytes + load.sample_bytes) * costs.byte
    return (load.samples + 1) * costs.call + load.sample_equations * costs.operation + compute


def _planning(nodes: int, costs: Costs) -> float:
    return costs.plan + nodes * costs.node


# How long compiling takes.


def fused_price(load: Load, costs: Costs) -> float:
    """One program with each kind of node in each width."""
    return costs.program + MOST_WIDTHS * load.kind_equations * costs.equation


def dispatch_price(load: Load, costs: Costs) -> float:
    """A program for each kind of node."""
    return load.kinds * costs.program + load.kind_equations * costs.equation


def structures_price(load: Load, costs: Costs) -> float:
    """A program with all nodes for each structure."""
    return load.structures * costs.program + load.structure_equations * costs.equation


class Prediction(NamedTuple):
    """What an executor takes for a batch, in seconds: to run it, planning included, and to compile it."""

    seconds: Callable[[Load, Costs], float]
    price: Callable[[Load, Costs], float]


PREDICTIONS = {
    "fused": Prediction(fused_seconds, fused_price),
    "dispatch": Prediction(dispatch_seconds, dispatch_price),
    "per_sample": Prediction(per_sample_seconds, structures_price),
}
"""By the names of executors; `"auto"` considers those that are here."""
