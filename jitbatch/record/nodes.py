"""From the recorded calls and bare operations of a sample to nodes.

Calls are nodes already. This module finds sums among the bare operations, groups the other operations into cells, and
adds a node for each sum and each cell. `record/finalise` drops unused nodes later.

A sample that asks for values is *cut* at each question: the operations recorded so far become nodes, and recording
continues.
"""

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jitbatch.ir.cell import ReductionCell
from jitbatch.ir.tables import ROW
from jitbatch.record.binding import bind, row_of
from jitbatch.record.finalise import Recording
from jitbatch.record.graph_builder import BARE, GraphBuilder, Node
from jitbatch.record.group_cells import GroupCells
from jitbatch.record.grouping import Item, group_items, needed_groups
from jitbatch.record.notes import note_group
from jitbatch.record.reductions import gather_sums
from jitbatch.record.rows import Rows
from jitbatch.record.running_totals import apart
from jitbatch.record.values import NODE, Op, Value, check_result
from jitbatch.util.key_order import flatten
from jitbatch.util.sites import is_generator

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder


class Part(NamedTuple):
    """The nodes between two cuts of a recording, in terms of its row ids (see `Recording` for the fields).

    Attributes:
        outputs: the rows of the leaves at the cut: those of the question, or of the result.
    """

    kinds: Sequence[int]
    counts: Sequence[int]
    operands: Sequence[int]
    made: Sequence[int]
    outputs: Sequence[int]


def build(recorder: "Recorder", result: Any, structure: Any) -> Recording:
    """The nodes of a recorded sample.

    Args:
        recorder: the recording.
        result: the return value of the sample's function.
        structure: the structure of the sample.
    """
    part, out_tree = finish(recorder, result)
    kinds, counts, operands, made, _ = part
    if recorder.parts:
        columns = zip(*(one[:4] for one in (*recorder.parts, part)), strict=True)
        kinds, counts, operands, made = (list(itertools.chain(*column)) for column in columns)
    builder = recorder.builder
    return Recording(
        kinds=kinds,
        counts=counts,
        operands=operands,
        made=made,
        outputs=part.outputs,
        numbered=(builder.node_outputs, builder.bare_outputs),
        given=builder.given,
        given_class=builder.given_class,
        leaf_shapes=tuple([aval.shape for aval in builder.leaf_avals]),
        constants=tuple(builder.constants),
        out_tree=out_tree,
        structure=structure,
    )


def finish(recorder: "Recorder", result: Any) -> tuple[Part, Any]:
    """The nodes after the last cut, and the tree of the result."""
    check_result(result, recorder.sample)
    leaves, out_tree = flatten(result)
    return _part(recorder, leaves, []), out_tree


def cut(recorder: "Recorder", leaves: Sequence[Any]) -> Part:
    """The nodes since the last cut, for a question about some leaves. Recording continues after it.

    Bare operations become nodes here. Later code may read their outputs only through references that still exist, so
    the referenced outputs become outputs of the cells, and the operations are dropped. Groups and running totals
    therefore end at a question.
    """
    recorder.leaks.check(leaves)
    ops = list(dict.fromkeys(recorder.ops))
    _clear_frames(ops)
    part = _part(recorder, leaves, _referenced(ops))
    for op in (*ops, *recorder.gathered):
        for value in op.outputs:
            if value.row is not None:
                value.source = NODE
    recorder.cut_ops += [op for op in ops if op.outputs and op.outputs[0].row is None]
    recorder.ops, recorder.gathered = [], []
    recorder.builder.reopen()
    recorder.parts.append(part)
    return part


def _clear_frames(ops: Sequence[Op]) -> None:
    """Clear the local variables of helpers that have returned. The sites of operations keep their frames alive."""
    frames = {frame for op in ops if op.site is not None for frame, _ in op.site.chain}
    for frame in frames:
        if not is_generator(frame.f_code):
            with contextlib.suppress(RuntimeError):  # the frame is running
                frame.clear()


def _referenced(ops: Sequence[Op]) -> list[Value]:
    """The output rows of these operations that other objects still refer to."""
    made = [value for op in ops for value in (*op.outputs, *(total for total, _ in op.totals))]
    held = Counter(id(value) for op in ops for value in (*op.inputs, *op.outputs, *(total for total, _ in op.totals)))
    found = []
    for value in made:
        own = held[id(value)] + 3  # references from `made`, `value`, and the argument of `getrefcount`
        if value.row is not None and sys.getrefcount(value) > own:
            found.append(value)
    return found


def _part(recorder: "Recorder", leaves: Sequence[Any], referenced: Sequence[Value]) -> Part:
    """The nodes since the last cut. Their outputs are these leaves, and the referenced values that later code may
    read."""
    builder, rows = recorder.builder, recorder.rows
    ops = _sample_operations(recorder, [*leaves, *referenced]) if recorder.ops else []
    outputs = [rows.any_row(leaf) for leaf in leaves]
    builder.close()
    if ops:
        _add_operations(recorder, ops, [*outputs, *(rows.any_row(value) for value in referenced)])
    operands = builder.operands
    if builder.same:
        operands = list(map(builder.origin, operands))
        outputs = list(map(builder.origin, outputs))
    return Part(builder.kinds, builder.counts, operands, builder.made, outputs)


def _sample_operations(recorder: "Recorder", results: Sequence[Any]) -> list[Op]:
    """The bare operations that depend on the sample, after the search for sums."""
    builder, rows = recorder.builder, recorder.rows
    if recorder.cells.granularity == "graph":
        ops = recorder.gathered = apart(recorder.ops)
    else:
        read = set()
        if max(builder.operands, default=0) >= BARE:
            read = {builder.origin(row) for row in builder.operands if row >= BARE}
        ops = recorder.gathered = gather_sums(recorder.ops, results, read=read)
    kept = []
    for op in ops:
        rows.place(op)
        row = op.outputs[0].row if op.outputs else BARE
        if row is None and not op.effects:
            continue  # a shared value, computed only if it is needed
        element = rows.element_of(op) if op.index is not None else None
        if element is None:
            kept.append(op)
        else:
            builder.same[row] = element.row  # type: ignore[index, assignment]
    return kept


def _add_operations(recorder: "Recorder", ops: Sequence[Op], outputs: Sequence[int]) -> None:
    """Group bare operations, and add a node for each group."""
    builder, rows, cells = recorder.builder, recorder.rows, recorder.cells
    first = min(op.at for op in ops)
    contents = _in_order(builder.pop_nodes(first), first, ops)
    is_read: set[Any] = set()
    if cells.granularity == "subgraph" and all(map(cells.is_boundary, ops)):
        groups: list[list[Any]] = [[content] for content in contents]
    else:
        items = [_item(content, builder, rows, cells) for content in contents]
        needed, is_read = needed_groups(_divide(items, cells.granularity), map(builder.origin, outputs))
        groups = [[item.content for item in group] for group in needed]
    for group in groups:
        if type(group[0]) is Node:
            builder.append(group[0])
            continue
        is_whole = cells.is_boundary(group[0])
        values = [value for op in group for value in op.outputs if is_whole or value.row in is_read]
        node = _node(group, values, rows, cells)
        builder.append(node)
        note_group(builder.tables.sources, builder.tables.kinds[node.kind_id].cell, group)


def _in_order(nodes: Sequence[Node], first: int, ops: Sequence[Op]) -> list[Node | Op]:
    """Nodes from `first` on, and operations, in recording order."""
    contents: list[Node | Op] = []
    done = 0
    for op in ops:
        at = max(done, op.at - first)
        contents += nodes[done:at]
        contents.append(op)
        done = at
    return [*contents, *nodes[done:]]


def _item(content: Node | Op, builder: GraphBuilder, rows: Rows, cells: GroupCells) -> Item:
    """A node or an operation as an item for grouping. Its keys are row ids."""
    if type(content) is Node:
        reads = list(map(builder.origin, content.operands))
        return Item(content, reads, content.outputs, builder.has_effects(content), None)
    op: Any = content
    reads = [builder.origin(row) for value in op.inputs if (row := rows.row(value)) is not None]
    site = None if cells.is_boundary(op) else op.site
    return Item(op, reads, [value.row for value in op.outputs], bool(op.effects), site, op.scope, op.turn)


def _divide(items: Sequence[Item], granularity: str) -> list[list[Item]]:
    """Divide items into groups. Each group becomes a node."""
    if granularity == "graph":
        return [list(items)]
    if granularity == "op" or not any(item.site for item in items):
        return [[item] for item in items]
    return group_items(items)


def _node(ops: Sequence[Op], values: Sequence[Value], rows: Rows, cells: GroupCells) -> Node:
    """The node of a group of operations. Its outputs are some of the values of the group."""
    op, tables = ops[0], rows.tables
    outputs: Any = [value.row for value in values]
    if isinstance(op.cell, ReductionCell):  # a sum may have many terms; usually all of them are rows
        terms: Any = [value.row if type(value) is Value else None for value in op.inputs]
        if None in terms:
            terms = list(map(rows.row, op.inputs))
        if None not in terms:
            return Node(tables.kind(op.cell, (ROW,)), terms, outputs)
    cell, operands = cells.cell_of(ops, values)
    closed_over = len(op.params["jaxpr"].consts) if op.cell is None and op.is_users_jit else 0
    is_passed = [op.cell is not None or (op.is_users_jit and place >= closed_over) for place in range(len(operands))]
    references: list[Any] = []
    for operand in operands:
        row = rows.row(operand)
        references.append(rows.shared(operand) if row is None else (row,))
    binding, reads = bind(cell, references, is_passed, tables, lambda row: (row_of(row, rows),))
    return Node(tables.kind(cell, binding), [row for (row,) in reads], outputs)
