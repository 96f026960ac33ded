"""A small cost model: it predicts the time of a batch from counts alone.

The predictions need not be exact. They distinguish batches that gain from batching from those that do not, and show
when a compilation has paid for itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jitbatch.execute.fused.targets import CPU
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Kind
from jitbatch.tune.flops import flops_of
from jitbatch.util import compat
from jitbatch.util.caches import Cache


@dataclass(frozen=True)
class Costs:
    """The costs of a backend, in seconds.

    Attributes:
        call: a jitted call.
        step: a step of the dispatch executor.
        phase, launch: a cell type in a program of the fused executor; each of its steps.
        operation: an equation of a program, when it runs.
        flop, byte: a floating point operation; a byte that is read or written.
        plan, node: planning a batch of known structures, and each of its nodes.
        copied: planning a node for the per-sample executor, which copies inputs one by one.
        record: recording a node of a new structure.
        program, equation: compiling a program, and each of its equations.
    """

    call: float
    step: float
    phase: float
    launch: float
    operation: float
    flop: float
    byte: float
    plan: float
    node: float
    copied: float
    record: float
    program: float
    equation: float


ON_CPU = Costs(
    call=15e-6, step=30e-6, phase=2e-6, launch=1e-6, operation=3e-7, flop=7e-12, byte=5e-12, plan=50e-6, node=1e-7,
    copied=7e-7, record=6e-6, program=0.3, equation=2e-3,
)  # fmt: skip
"""The costs of a CPU with two cores, jax 0.10, measured on 2026-11-19 with `bench/costs.py` on a busy machine. They are
rounded so that of the executors that are compared there (`--predictions`) the faster one is predicted to be faster."""

ON_ACCELERATOR = Costs(
    call=40e-6, step=200e-6, phase=0.0, launch=20e-6, operation=3e-6, flop=1e-13, byte=2e-12, plan=50e-6, node=1e-7,
    copied=7e-7, record=6e-6, program=1.0, equation=5e-3,
)  # fmt: skip
"""The costs of a large GPU or TPU. They are guesses from data sheets, except for planning, which is a CPU's."""


def known_costs() -> Costs:
    """The costs on the running backend."""
    return ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR


class Work(NamedTuple):
    """The work of a node.

    Attributes:
        flops: floating-point operations.
        row_bytes: bytes of its rows, and of the elements that it looks up in shared operands.
        bound_bytes: bytes of the shared operands that it reads as a whole.
        equations: the number of its equations.
    """

    flops: int
    row_bytes: int
    bound_bytes: int
    equations: int


_work = Cache(8192, first=1024)


def work_of(kind: Kind) -> Work:
    """The work of a node of a kind, estimated from its jaxpr."""

    def estimate() -> Work:
        cell = kind.cell
        inputs = list(zip(cell.jaxpr.jaxpr.invars, cell.in_avals, kind.vmapped, strict=True))
        read = [bytes_read(cell.jaxpr.jaxpr, var) for var, _, is_row in inputs if not is_row]
        rows = [_bytes(aval) for _, aval, is_row in inputs if is_row]
        return Work(
            flops=flops_of(cell.jaxpr),
            row_bytes=sum(rows) + sum(map(_bytes, cell.out_avals)) + sum(looked_up for _, looked_up in read),
            bound_bytes=sum(whole for whole, _ in read),
            equations=max(len(cell.jaxpr.jaxpr.eqns), 1),
        )

    return _work.get_or_make(kind, estimate)


def bytes_read(jaxpr: Any, operand: Any) -> tuple[int, int]:
    """The bytes that are read of an operand of a jaxpr as a whole, and by look-ups of some of its elements.

    A look-up (a gather or a dynamic slice, such as `embedding[token]`) reads as many elements as it returns. Once an
    equation reads the whole operand, look-ups read nothing more.
    """
    size, looked_up = _bytes(operand.aval), 0
    if any(out is operand for out in jaxpr.outvars):
        return size, 0
    for equation in jaxpr.eqns:
        slots = [slot for slot, atom in enumerate(equation.invars) if atom is operand]
        if not slots:
            continue
        if equation.primitive.name in compat.LOOKUPS and slots == [0]:
            looked_up += sum(_bytes(out.aval) for out in equation.outvars)
        elif equation.primitive.name in compat.CALLS:
            body = next(iter(compat.jaxprs_in_params(equation.params)))
            found = [bytes_read(body, body.invars[slot]) for slot in slots]
            if any(whole for whole, _ in found):
                return size, 0
            looked_up += sum(part for _, part in found)
        else:
            return size, 0
    return (size, 0) if looked_up > size else (0, looked_up)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)


class Load(NamedTuple):
    """The work of a batch. It does not depend on the executor.

    Attributes:
        samples, structures, nodes, kinds: the number of each.
        steps: the number of ranks of all kinds: a lower bound on the number of steps (see `ir/ranks`).
        flops: floating-point operations.
        row_bytes: bytes of rows, and of the elements that nodes look up in shared operands.
        step_bytes, sample_bytes, structure_bytes: bytes of shared operands, if they are read once for each step; for
            each node of each sample; for each node of each structure.
        kind_equations, structure_equations, sample_equations: equations of all kinds; of all nodes of all structures;
            of all nodes of all samples.
        has_effects: whether any node has effects.
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
    """The load of a batch of at least one sample. Calls that `dedupe` would merge count separately."""
    kinds = graphs[0].tables.kinds
    distinct = list(dict.fromkeys(graphs))
    size = 1 + max(int(graph.kinds_present.max(initial=0)) for graph in distinct)
    count, once, ranks = np.zeros((3, size), np.int64)
    np.add.at(count, np.concatenate([graph.kinds_present for graph in graphs]), _joined(graphs, 0))
    present = np.concatenate([graph.kinds_present for graph in distinct])
    np.add.at(once, present, _joined(distinct, 0))
    np.maximum.at(ranks, present, _joined(distinct, 1))
    kind_ids = np.flatnonzero(count)
    count, once, ranks = count[kind_ids], once[kind_ids], ranks[kind_ids]
    work = np.array([work_of(kinds[kind_id]) for kind_id in kind_ids.tolist()], float).reshape(-1, 4)
    flops, row_bytes, bound_bytes, equations = work.T
    return Load(
        samples=len(graphs),
        structures=len(distinct),
        nodes=int(count.sum()),
        kinds=len(kind_ids),
        steps=int(ranks.sum()),
        flops=float(count @ flops),
        row_bytes=float(count @ row_bytes),
        step_bytes=float(ranks @ bound_bytes),
        sample_bytes=float(count @ bound_bytes),
        structure_bytes=float(once @ bound_bytes),
        kind_equations=int(equations.sum()),
        structure_equations=int(once @ equations),
        sample_equations=int(count @ equations),
        has_effects=any(kinds[kind_id].cell.has_effects for kind_id in kind_ids.tolist()),
    )


def _joined(graphs: Sequence[Graph], column: int) -> np.ndarray:
    """The concatenated `kind_sizes` of graphs: node counts (column 0) or numbers of ranks (column 1)."""
    return np.concatenate([graph.kind_sizes[column] for graph in graphs])


# The predicted seconds of a batch once its programs are compiled, planning included.


def fused_seconds(load: Load, costs: Costs) -> float:
    compute = _compute(load.flops, load.row_bytes + load.step_bytes, costs)
    steps = load.kinds * costs.phase + load.steps * costs.launch
    return _planning(load.nodes, costs) + costs.call + steps + compute


def dispatch_seconds(load: Load, costs: Costs) -> float:
    compute = _compute(load.flops, load.row_bytes + load.step_bytes, costs)
    return _planning(load.nodes, costs) + load.steps * costs.step + compute


def whole_seconds(load: Load, costs: Costs) -> float:
    """One vmapped call for each structure. It runs the nodes of the structure one by one, each over all its samples."""
    compute = _compute(load.flops, load.row_bytes + load.structure_bytes, costs)
    calls = load.structures * costs.step + load.structure_equations * costs.operation
    return _planning(load.samples, costs) + calls + compute


def per_sample_seconds(load: Load, costs: Costs) -> float:
    """One program, with the nodes of all samples one by one."""
    compute = _compute(load.flops, load.row_bytes + load.sample_bytes, costs)
    planning = costs.plan + load.nodes * costs.copied
    return planning + costs.call + load.sample_equations * costs.operation + compute


def _planning(nodes: int, costs: Costs) -> float:
    return costs.plan + nodes * costs.node


def _compute(flops: float, bytes_moved: float, costs: Costs) -> float:
    return flops * costs.flop + bytes_moved * costs.byte


# The same predictions for one step and one cell. Reports use them.


def step_seconds(work: Work, rows: int, in_one_program: bool, costs: Costs) -> float:
    """The seconds of one step of a cell. A step reads shared operands once, also in several chunks.

    Args:
        work: the work of a node.
        rows: the number of computed rows, padding included. The seconds of 0 rows are the fixed cost of a step.
        in_one_program: whether the executor runs all steps in one program.
        costs: the costs of the backend.
    """
    start = costs.launch if in_one_program else costs.step
    return start + _compute(rows * work.flops, rows * work.row_bytes + work.bound_bytes, costs)


def cell_price(work: Work, widths: int, in_one_program: bool, costs: Costs) -> float:
    """The seconds to compile a cell in a number of widths."""
    return widths * (work.equations * costs.equation + (0 if in_one_program else costs.program))


# The predicted seconds of compilation.


def fused_price(load: Load, costs: Costs) -> float:
    """The price of one program with each kind of node in each width."""
    return costs.program + CPU.most_widths * load.kind_equations * costs.equation


def dispatch_price(load: Load, costs: Costs) -> float:
    """The price of one program for each kind of node."""
    return load.kinds * costs.program + load.kind_equations * costs.equation


def structures_price(load: Load, costs: Costs) -> float:
    """The price of one program for each structure, with all its nodes."""
    return load.structures * costs.program + load.structure_equations * costs.equation


class Prediction(NamedTuple):
    """The predictions for an executor, in seconds: to run a batch, planning included, and to compile it."""

    seconds: Callable[[Load, Costs], float]
    price: Callable[[Load, Costs], float]


PREDICTIONS = {
    "fused": Prediction(fused_seconds, fused_price),
    "dispatch": Prediction(dispatch_seconds, dispatch_price),
    "per_sample": Prediction(per_sample_seconds, structures_price),
}
"""The predictions by the name of the executor. `"auto"` considers only these executors."""
