"""The graph while it is recorded: row ids, and nodes that are taken off and put back."""

import numpy as np

from jitbatch.ir.cell import reduction_cell
from jitbatch.ir.tables import ROW, SharedLeaf, Tables
from jitbatch.record.graph_builder import BARE, GraphBuilder, Node
from jitbatch.util import compat


def builder_of_sums(*reads: list[int]) -> GraphBuilder:
    """A graph of nodes that each make one row, from these rows."""
    builder = GraphBuilder(Tables())
    kind_id = builder.tables.kind(reduction_cell("sum", (2,), np.dtype(np.float32)), (ROW,))
    for operands in reads:
        builder.kinds.append(kind_id)
        builder.counts.append(len(operands))
        builder.operands += operands
        builder.node_outputs += 1
    builder.close()
    return builder


def test_rows_have_ids_of_three_sorts() -> None:
    builder = GraphBuilder(Tables())
    assert [builder.give(0, 0, 0, 0), builder.give(1, 0, 0, 0)] == [-1, -2]
    assert [builder.bare_row(), builder.bare_row()] == [BARE, BARE + 1]
    builder.same |= {BARE + 1: BARE, BARE: -1}
    assert [builder.origin(row) for row in (BARE + 1, BARE, -1, 7)] == [-1, -1, -1, 7]


def test_equal_constants_and_shared_values_are_one_row() -> None:
    builder = GraphBuilder(Tables())
    aval = compat.make_aval((), np.dtype(np.float32))
    shared_id = builder.tables.share(SharedLeaf(0), aval)
    rows = [builder.constant_row(np.float32(2)), builder.shared_row(shared_id), builder.constant_row(np.float32(2))]
    assert rows == [-1, -2, -1]
    assert builder.shared_row(shared_id) == -2
    assert (builder.given, builder.constants) == ([(0, 0, 0), (-1, shared_id, 0)], [np.float32(2)])


def test_nodes_are_taken_off_and_put_back() -> None:
    builder = builder_of_sums([-1, -2], [0], [0, 1, -1])
    kind_id = builder.kinds[0]
    nodes = builder.pop_nodes(1)
    assert [(node.kind_id, list(node.operands), list(node.outputs)) for node in nodes] == [
        (kind_id, [0], [1]),
        (kind_id, [0, 1, -1], [2]),
    ]
    assert (builder.counts, builder.operands, builder.made) == ([2], [-1, -2], [0])
    for node in (Node(kind_id, [-1], [BARE]), *nodes):
        builder.append(node)
    assert (builder.counts, builder.operands) == ([2, 1, 1, 3], [-1, -2, -1, 0, 0, 1, -1])
    assert list(builder.made) == [0, BARE, 1, 2]
    assert not builder.has_effects(nodes[0])
