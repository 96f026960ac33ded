"""Graphs in terms of the types of a batch: once for each structure and decision about types."""

from collections.abc import Sequence
from typing import Any

from jitbatch.batch.types import Types
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.ir.graph import Graph

REMEMBERED = 4
"""How many decisions a graph remembers what it looks like under."""


def typed(graphs: Sequence[Graph], types: Types) -> list[TypedGraph]:
    """Graphs in terms of the types of a batch."""
    found: list[Any] = [graph.typed.get(types) for graph in graphs]
    return [
        _retype(graph, types) if known is None else known for graph, known in zip(graphs, found, strict=True)
    ]  # fmt: skip


def _retype(graph: Graph, types: Types) -> TypedGraph:
    """A graph in terms of some types, which it remembers."""
    known = graph.typed.get(types)  # of an earlier sample of the batch
    if known is None:
        while len(graph.typed) >= REMEMBERED:
            graph.typed.pop(next(iter(graph.typed)), None)
        rows = graph.input_rows
        known = graph.typed[types] = types.table.graph(
            graph.kind, graph.operand_start, graph.operands, graph.shared_rows, graph.outputs,
            rows.of_input, rows.counts,
        )  # fmt: skip
    return known
