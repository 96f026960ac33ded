"""The graphs of a batch as one: concatenated, with values numbered over the whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitbatch._graph import Graph


@dataclass(frozen=True)
class Batch:
    """The graphs of a batch, concatenated; values are numbered over the whole batch."""

    kind: np.ndarray
    level: np.ndarray
    operand_start: np.ndarray
    operands: np.ndarray
    value_class: np.ndarray
    first_value: np.ndarray
    producer: np.ndarray
    input_values: np.ndarray
    shared_values: np.ndarray
    shared_numbers: np.ndarray
    outputs: np.ndarray


def concatenate(graphs: Sequence[Graph]) -> Batch:
    values = offsets([len(g.value_class) for g in graphs])
    nodes = offsets([g.node_count for g in graphs])
    edges = offsets([len(g.operands) for g in graphs])

    def joined(arrays: Sequence[np.ndarray], offsets: np.ndarray | None = None) -> np.ndarray:
        whole = np.concatenate(arrays).astype(np.int64)
        if offsets is not None:
            whole += np.repeat(offsets[:-1], [len(a) for a in arrays])
        return whole

    producer = joined([g.producer for g in graphs])
    producer[producer >= 0] += np.repeat(nodes[:-1], [int((g.producer >= 0).sum()) for g in graphs])
    return Batch(
        kind=joined([g.kind for g in graphs]),
        level=joined([g.level for g in graphs]),
        operand_start=np.append(joined([g.operand_start[:-1] for g in graphs], edges), edges[-1]),
        operands=joined([g.operands for g in graphs], values),
        value_class=joined([g.value_class for g in graphs]),
        first_value=joined([g.node_values[:-1] for g in graphs], values),
        producer=producer,
        input_values=joined([np.arange(len(g.inputs)) for g in graphs], values),
        shared_values=joined([np.arange(len(g.inputs), g.first_node_value) for g in graphs], values),
        shared_numbers=joined([g.shared_rows for g in graphs]),
        outputs=joined([g.outputs for g in graphs], values),
    )


def offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ...`"""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
