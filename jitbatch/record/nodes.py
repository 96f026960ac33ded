"""From what was recorded to nodes.

Most are integers already. Sums are found among the bare operations, and what remains of these is grouped into cells,
each a further node. What is read only by what nothing needs is dropped later (see `record/finalise`).
"""

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jitbatch.ir.cell import ReductionCell
from jitbatch.ir.tables import ROW, Tables
from jitbatch.record.finalise import Recording
from jitbatch.record.grouping import group_operations
from jitbatch.record.notes import note_group
from jitbatch.record.recorder import Recorder
from jitbatch.record.reductions import gather_sums
from jitbatch.record.rows import BARE, Numbers
from jitbatch.record.running_totals import apart
from jitbatch.record.templates import bind, further_row
from jitbatch.record.values import Op, Value, check_result
from jitbatch.util.key_order import flatten


class Node(NamedTuple):
    """A node that is made of bare operations: its kind, the numbers of what it reads, and of what it makes."""

    kind: int
    operands: Sequence[int]
    made: Sequence[int]


def build(recorder: Recorder, result: Any, structure: Any) -> Recording:
    """What a recorded sample of some structure computes, whose function returned `result`."""
    check_result(result, recorder.sample)
    leaves, out_tree = flatten(result)
    numbers, tables = recorder.numbers, recorder.tables
    kept = _kept_operations(recorder, leaves) if recorder.ops else []
    outputs = [_row(leaf, numbers) for leaf in leaves]
    nodes = Nodes(recorder.kinds, recorder.counts, recorder.operands, range(numbers.made), tables)
    if kept:
        grouped = numbers.granularity != "subgraph" or not all(map(numbers.is_boundary, kept))
        nodes = _grouped(recorder, kept, nodes, outputs) if grouped else _with_boundaries(kept, nodes, numbers)
    if numbers.same:
        nodes.operands = list(map(numbers.actual, nodes.operands))
        outputs = list(map(numbers.actual, outputs))
    return Recording(
        kinds=nodes.kinds,
        counts=nodes.counts,
        operands=nodes.operands,
        made=nodes.made,
        outputs=outputs,
        numbered=(numbers.made, numbers.bare),
        given=numbers.given,
        given_class=numbers.given_class,
        leaf_shapes=tuple([aval.shape for aval in numbers.leaf_avals]),
        constants=tuple(numbers.constants),
        out_tree=out_tree,
        structure=structure,
    )


class Nodes:
    """Nodes in an order: their kinds, how many rows each reads, and the numbers of the rows that they read and make."""

    def __init__(
        self, kinds: Sequence[int], counts: Sequence[int], operands: Sequence[int], made: Sequence[int], tables: Tables
    ):
        self.kinds = kinds
        self.counts = counts
        self.operands = operands
        self.made = made
        self.tables = tables

    @cached_property
    def starts(self) -> list[int]:
        """Where the operands of each node begin."""
        return list(itertools.accumulate(self.counts, initial=0))

    @cached_property
    def firsts(self) -> list[int]:
        """Where what each node makes begins."""
        classes = self.tables.kind_classes
        return list(itertools.accumulate([len(classes[kind]) for kind in self.kinds], initial=0))

    def reads(self, node: int) -> Sequence[int]:
        return self.operands[self.starts[node] : self.starts[node + 1]]

    def makes(self, node: int) -> Sequence[int]:
        return self.made[self.firsts[node] : self.firsts[node + 1]]

    def has_effects(self, node: int) -> bool:
        return self.tables.kinds[self.kinds[node]].cell.has_effects

    def taken(self, order: Sequence[int], further: Sequence[Node] = (), first: int = 0) -> "Nodes":
        """The `first` nodes, and some of the others and further ones, which have the numbers that follow."""
        kinds, counts = list(self.kinds[:first]), list(self.counts[:first])
        operands, made = list(self.operands[: self.starts[first]]), list(self.made[: self.firsts[first]])
        for node in order:
            if node < len(self.kinds):
                kind, reads, makes = self.kinds[node], self.reads(node), self.makes(node)
            else:
                kind, reads, makes = further[node - len(self.kinds)]
            kinds.append(kind)
            counts.append(len(reads))
            operands += reads
            made += makes
        return Nodes(kinds, counts, operands, made, self.tables)


def _with_boundaries(kept: Sequence[Op], nodes: Nodes, numbers: Numbers) -> Nodes:
    """The nodes with operations among them that are nodes of their own."""
    further = [_node([op], op.outputs, numbers) for op in kept]
    count = len(nodes.kinds)
    for one, op in zip(further, kept, strict=True):
        note_group(numbers.tables.sources, numbers.tables.kinds[one.kind].cell, [op])
    if all(op.at == count for op in kept):
        return Nodes(
            [*nodes.kinds, *(one.kind for one in further)],
            [*nodes.counts, *(len(one.operands) for one in further)],
            [*nodes.operands, *(row for one in further for row in one.operands)],
            [*nodes.made, *(row for one in further for row in one.made)],
            numbers.tables,
        )
    places = sorted(range(count + len(kept)), key=lambda node: node if node < count else kept[node - count].at - 0.5)
    return nodes.taken(places, further)


def _row(value: Any, numbers: Numbers) -> int:
    row = numbers.row(value)
    return numbers.shared_row(numbers.shared(value)) if row is None else row


# Bare operations


def _kept_operations(recorder: Recorder, results: Sequence[Any]) -> list[Op]:
    """The operations that are work of the sample, with sums in place of what they were written as."""
    numbers, ops = recorder.numbers, recorder.ops
    if numbers.granularity == "graph":
        ops = recorder.gathered = apart(ops)
    else:
        read = set()
        if max(recorder.operands, default=0) >= BARE:
            read = {numbers.actual(row) for row in recorder.operands if row >= BARE}
        ops = recorder.gathered = gather_sums(ops, results, read=read)
    kept = []
    for op in ops:
        numbers.place(op)
        row = op.outputs[0].row if op.outputs else BARE
        if row is None and not op.effects:
            continue  # a shared value, which is computed if something needs it
        element = numbers.element_of(op) if op.index is not None else None
        if element is None:
            kept.append(op)
        else:
            numbers.same[row] = element.row  # type: ignore[index, assignment]
    return kept


def _grouped(recorder: Recorder, kept: Sequence[Op], nodes: Nodes, outputs: Sequence[int]) -> Nodes:
    """The nodes, among them groups of operations; what comes after the first operation only if it is needed."""
    numbers, tables = recorder.numbers, recorder.tables
    first = min(op.at for op in kept)
    items = _items(first, len(nodes.kinds), kept)
    reads = [_reads(item, nodes, numbers) for item in items]
    makes = [nodes.makes(item) if type(item) is int else [value.row for value in item.outputs] for item in items]
    made_by = {row: place for place, made in enumerate(makes) for row in made}
    members = _groups(numbers, items, [[made_by[row] for row in rows if row in made_by] for rows in reads])
    group_of = [0] * len(items)
    for number, group in enumerate(members):
        for place in group:
            group_of[place] = number

    # Backwards: which groups are needed, and what of each is read outside of it.
    is_read = set(map(numbers.actual, outputs))
    needed = [False] * len(members)
    for number in reversed(range(len(members))):
        for place in members[number]:
            item = items[place]
            effects = nodes.has_effects(item) if type(item) is int else item.effects
            needed[number] = needed[number] or bool(effects) or not is_read.isdisjoint(makes[place])
        if needed[number]:
            for place in members[number]:
                is_read.update([row for row in reads[place] if group_of[made_by.get(row, place)] != number])

    order: list[int] = []
    further: list[Node] = []
    for number, group in enumerate(members):
        if not needed[number]:
            continue
        ops = [items[place] for place in group]
        if type(ops[0]) is int:
            order.append(ops[0])
            continue
        whole = numbers.is_boundary(ops[0])
        values = [value for op in ops for value in op.outputs if whole or value.row in is_read]
        order.append(len(nodes.kinds) + len(further))
        further.append(_node(ops, values, numbers))
        note_group(tables.sources, tables.kinds[further[-1].kind].cell, ops)
    return nodes.taken(order, further, first)


def _items(first: int, nodes: int, kept: Sequence[Op]) -> list[Any]:
    """Nodes from the first on, by number, and operations, in the order of the recording."""
    items: list[Any] = []
    done = first
    for op in kept:
        items += range(done, op.at)
        done = max(done, op.at)
        items.append(op)
    return [*items, *range(done, nodes)]


def _reads(item: Any, nodes: Nodes, numbers: Numbers) -> list[int]:
    """The numbers of what a node or an operation reads."""
    if type(item) is int:
        return list(map(numbers.actual, nodes.reads(item)))
    return [numbers.actual(row) for value in item.inputs if (row := numbers.row(value)) is not None]


def _groups(numbers: Numbers, items: Sequence[Any], reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """The items, by place, that are a node together; it is given which others each reads."""
    if numbers.granularity == "graph":
        return [list(range(len(items)))]
    sites = [None if type(item) is int or numbers.is_boundary(item) else item.site for item in items]
    if numbers.granularity == "op" or not any(sites):
        return [[place] for place in range(len(items))]
    scopes = [0 if type(item) is int else item.scope for item in items]
    turns = [None if type(item) is int else item.turn for item in items]
    of = group_operations(sites, scopes, reads, turns)
    members: list[list[int]] = [[] for _ in range(max(of, default=-1) + 1)]
    for place, number in enumerate(of):
        members[number].append(place)
    return members


def _node(ops: Sequence[Op], values: Sequence[Value], numbers: Numbers) -> Node:
    """A node that is made of operations, with some of the values that they make."""
    op = ops[0]
    if isinstance(op.cell, ReductionCell):  # which may have many terms; most often, all of them are rows
        known = [value.row if type(value) is Value else None for value in op.inputs]
        rows = known if None not in known else list(map(numbers.row, op.inputs))
        if None not in rows:
            return Node(numbers.tables.kind(op.cell, (ROW,)), rows, [value.row for value in values])  # type: ignore[arg-type, misc]
    cell, operands = numbers.cell_of(ops, values)
    closed = len(op.params["jaxpr"].consts) if op.cell is None and op.is_users_jit else 0
    passed = [op.cell is not None or (op.is_users_jit and place >= closed) for place in range(len(operands))]
    references: list[Any] = []
    for operand in operands:
        row = numbers.row(operand)
        references.append(numbers.shared(operand) if row is None else (row,))
    binding, reads = bind(cell, references, passed, numbers, lambda row: (further_row(row, numbers),))
    return Node(numbers.tables.kind(cell, binding), [row for (row,) in reads], [value.row for value in values])  # type: ignore[misc]
