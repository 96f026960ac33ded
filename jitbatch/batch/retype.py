"""Graphs expressed in the types of a batch, computed once for each structure and decision about types."""

from collections.abc import Sequence
from typing import Any

from jitbatch.batch.types import Types
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.ir.graph import Graph

REMEMBERED = 4
"""The number of typed graphs that a graph caches, one for each decision about types."""


def typed(graphs: Sequence[Graph], types: Types) -> list[TypedGraph]:
    """Each graph expressed in the types of a batch."""
    found: list[Any] = [graph.typed.get(types) for graph in graphs]
    return [
        _retype(graph, types) if known is None else known for graph, known in zip(graphs, found, strict=True)
    ]  # fmt: skip


def _retype(graph: Graph, types: Types) -> TypedGraph:
    """Express a graph in types, and cache the result in the graph."""
    known = graph.typed.get(types)  # an earlier sample of this batch may have added it
    if known is None:
        while len(graph.typed) >= REMEMBERED:
            graph.typed.pop(next(iter(graph.typed)), None)
        rows = graph.input_rows
        known = graph.typed[types] = types.table.graph(
            graph.kind, graph.operand_start, graph.operands, graph.shared_rows, graph.outputs,
            rows.of_input, rows.counts,
        )  # fmt: skip
    return known
