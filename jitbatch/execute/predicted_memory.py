"""Prediction of a plan's memory from its static sizes.

It is only a prediction, because XLA decides which buffers share memory and which operations are fused. On the programs
in the tests it is within a factor of 1.5 of XLA's allocation.
"""

from dataclasses import dataclass

import jax

from jitbatch.execute.memory import ProgramMemory, nbytes
from jitbatch.execute.program import Runnable, RunnableStatic
from jitbatch.util.compat import is_float


@dataclass(frozen=True)
class Memory:
    """The predicted peak memory of running a plan in bytes, with parameters, tables, inputs and outputs.

    Attributes:
        inference: bytes to compute the outputs.
        training: bytes to compute a scalar of the outputs and its gradient with respect to all shared arguments.

    >>> print(Memory(inference=3_500_000, training=36_000_000))
    3.5 MB for inference, 36.0 MB for training
    """

    inference: int
    training: int

    def __str__(self) -> str:
        return f"{_readable(self.inference)} for inference, {_readable(self.training)} for training"


def _readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
        size /= 1000
    return f"{size:.1f} TB"


@dataclass(frozen=True)
class StaticMemory:
    """The part of a prediction that depends on the static part of a plan: all but tables, input rows and outputs.

    Attributes:
        inference, training: bytes, as in `Memory`.
        out_rows: the bytes of one row of each stacked output. For `out="list"` it is empty, and `inference` and
            `training` include the outputs.
    """

    inference: int
    training: int
    out_rows: tuple[int, ...]


def predict_memory(plan: Runnable, static: StaticMemory) -> Memory:
    """Predicts the memory of running a plan, from the prediction for its static part."""
    outputs = sum(len(rows) * size for rows, size in zip(plan.out_rows, static.out_rows, strict=False))
    data = outputs + sum(leaf.nbytes for leaf in jax.tree.leaves(plan))
    return Memory(static.inference + data, static.training + data)


def predict_static_memory(static: RunnableStatic) -> StaticMemory:
    """Predicts the memory of running a plan with this static part, without tables, input rows and stacked outputs."""
    classes = [static.tables.classes[arena.value_class] for arena in static.arenas]
    sizes = [arena.capacity * nbytes(value_class) for arena, value_class in zip(static.arenas, classes, strict=True)]
    program: ProgramMemory = static.program.memory(sizes, classes)
    # An update of a cotangent arena makes a second arena.
    cotangents = 2 * sum(size for size, value_class in zip(sizes, classes, strict=True) if is_float(value_class))
    shared_ids = static.program.shared.union(*(arena.shared for arena in static.arenas))
    shared = [static.tables.classes[static.tables.shared_class[shared_id]] for shared_id in shared_ids]
    parameters = sum(map(nbytes, shared))
    gradients = sum(nbytes(value_class) for value_class in shared if is_float(value_class))
    outputs = [nbytes(classes[class_id]) for class_ids in static.out_arenas for class_id in class_ids]
    listed = sum(outputs) if static.out == "list" else 0
    forward = max((need.forward for need in program.needs), default=0)
    backward = max((need.backward for need in program.needs), default=0)
    saved = sum(need.saved for need in program.needs)
    return StaticMemory(
        inference=parameters + sum(sizes) + forward + listed,
        training=parameters + gradients + program.kept + cotangents + saved + backward + listed,
        out_rows=() if static.out == "list" else tuple(outputs),
    )
