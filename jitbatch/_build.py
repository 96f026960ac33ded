"""From a recording to a graph.

One pass backwards finds what is needed; one pass forwards decides for each operation whether it is an index into the
sample's inputs, a shared value, or work of the sample; bare operations are grouped into cells; the rest is numbering.
"""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jitbatch import _compat
from jitbatch._caches import Cache
from jitbatch._canonical import Cell, Identity, SumCell, array_key, intern_cell
from jitbatch._fold import fold
from jitbatch._graph import ROW, Graph, SharedArray, SharedLeaf, SharedResult, Tables, levels_of
from jitbatch._group import group_operations
from jitbatch._record import Recorder
from jitbatch._sums import gather_sums
from jitbatch._values import ConstantRow, InputSource, Op, Value, check_result, root, within

SMALL = 1024
"""Constants of up to this many elements that are passed to a subgraph are rows of the batch, as inputs are: calls on
different constants are one bucket. Larger ones, and what a subgraph closes over, are part of what it computes."""


class ClosesOverTracer(Exception):
    """A sample uses a value of an outer transformation: its graph holds for this call alone."""


class Shared(NamedTuple):
    number: int


class Input(NamedTuple):
    leaf: int
    depth: int
    row: int


class View(NamedTuple):
    """A slice of an input, not yet needed as an array."""

    of: Input
    rows: range
    op: Op


class Made(NamedTuple):
    """Output `output` of the kept operation `op`."""

    op: int
    output: int


Ref = Shared | Input | View | Made


class Builder:
    def __init__(self, recorder: Recorder, granularity: str, may_close_over_tracers: bool):
        self.tables: Tables = recorder.tables
        self.granularity = granularity
        self.may_close_over_tracers = may_close_over_tracers
        self.refs: dict[int, Ref] = {}
        self.kept: list[Op] = []
        self.leaf_avals: list[Any] = list(recorder.input_avals)
        self.constants: dict[Hashable, tuple[int, Any]] = {}
        self.inputs: list[list[Ref]] = []  # what each kept operation reads

    # What each value is

    def ref(self, value: Any) -> Ref:
        value = root(value)
        found = self.refs.get(id(value))
        if found is None:
            if type(value) is not Value:
                return self.constant(value)
            source = value.source
            if isinstance(source, ConstantRow):
                found = self.refs[id(value)] = self.constant_row(source.array)
                return found
            assert isinstance(source, InputSource), "operations are recorded in topological order"
            if source.shared:
                found = Shared(self.tables.share(SharedLeaf(source.leaf), value.aval))
            else:
                found = Input(source.leaf, 0, 0)
            self.refs[id(value)] = found
        return found

    def whole(self, value: Any) -> Ref:
        """The reference to a value that is needed as an array."""
        found = self.ref(value)
        if isinstance(found, View):
            found = self.keep(found.op, [self.whole(value) for value in found.op.inputs])[0]
        return found

    def constant(self, value: Any) -> Shared:
        if _compat.is_tracer(value) and not self.may_close_over_tracers:
            raise ClosesOverTracer
        return Shared(self.tables.share(SharedArray(value), jax.typeof(value)))

    def constant_row(self, value: Any) -> Input:
        """A constant that is a row, as a leaf of the sample is."""
        aval = jax.typeof(value)
        host = value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)
        key = array_key(host)
        if key not in self.constants:
            self.constants[key] = len(self.leaf_avals), host
            self.leaf_avals.append(aval)
        return Input(self.constants[key][0], 0, 0)

    # What each operation becomes

    def add(self, op: Op) -> None:
        if op.index is not None:
            base = self.ref(op.inputs[0])
            if isinstance(base, View):
                base, index = base.of, within(base.rows, op.index)
            else:
                index = op.index
            if isinstance(base, Input):
                if isinstance(index, int):
                    length = self._length(op)
                    ref: Ref = Input(base.leaf, base.depth + 1, base.row * length + index)
                else:
                    ref = View(base, index, op)
                self.refs[id(op.outputs[0])] = ref
                return
        refs = self.refs
        inputs = [found if type(found := refs.get(id(value))) is Made else self.whole(value) for value in op.inputs]
        if not op.effects and all(type(ref) is Shared for ref in inputs):
            cell, operands = self.cell_of([op], op.outputs)
            numbers = tuple(self._shared_number(operand) for operand in operands)
            for output, value in enumerate(op.outputs):
                number = self.tables.share(SharedResult(cell, numbers, output), value.aval)
                self.refs[id(value)] = Shared(number)
        else:
            self.keep(op, inputs)

    def _length(self, op: Op) -> int:
        """The length of the axis that an index into an input, or into a slice of one, goes along."""
        base = self.ref(op.inputs[0])
        while isinstance(base, View):
            op = base.op
            base = self.ref(op.inputs[0])
        return op.inputs[0].aval.shape[0]

    def _shared_number(self, operand: Any) -> int:
        ref = self.ref(operand)
        assert isinstance(ref, Shared)
        return ref.number

    def keep(self, op: Op, inputs: list[Ref]) -> list[Made]:
        made = [Made(len(self.kept), output) for output in range(len(op.outputs))]
        self.kept.append(op)
        self.inputs.append(inputs)
        for value, ref in zip(op.outputs, made, strict=True):
            self.refs[id(value)] = ref
        return made

    # Cells

    def is_boundary(self, op: Op) -> bool:
        return op.cell is not None or (self.granularity == "subgraph" and op.is_users_jit)

    def groups(self) -> list[list[int]]:
        """The kept operations, by number, that are a node together."""
        count = len(self.kept)
        if self.granularity == "op":
            return [[number] for number in range(count)]
        if self.granularity == "graph":
            return [list(range(count))] if count else []
        sites = [None if self.is_boundary(op) else op.site for op in self.kept]
        if not any(sites):
            return [[number] for number in range(count)]
        reads = [[ref.op for ref in inputs if type(ref) is Made] for inputs in self.inputs]
        numbers = group_operations(sites, [op.scope for op in self.kept], reads, [op.turn for op in self.kept])
        members: list[list[int]] = [[] for _ in range(max(numbers, default=-1) + 1)]
        for op, number in enumerate(numbers):
            members[number].append(op)
        return members

    def cell_of(self, ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[Cell, list[Any]]:
        """The cell of a group, and its operands."""
        op = ops[0]
        if op.cell is not None:
            return op.cell, [root(value) for value in op.inputs]
        if self.is_boundary(op):
            closed = op.params["jaxpr"]
            cell = _jit_cells.get_or_make(Identity(closed), lambda: _jit_cell(closed, op.params["name"]))
            return cell, [*closed.consts, *(root(value) for value in op.inputs)]
        assert op.site is not None
        where = op.site.chain[0][0].f_code.co_qualname if op.site.chain else "sample"
        name = where.replace("<locals>.", "")
        # What a group computes is not to depend on what its sample reads of it, so that equal groups are one type.
        jaxpr, operands = fold(ops, [], outputs, name, resolve=root, keep_dead_code=self.granularity == "subgraph")
        return intern_cell(jaxpr, name, op.site.where if op.site.chain else "?"), operands


_jit_cells = Cache(1024)


def _jit_cell(closed: Any, name: str) -> Cell:
    """The cell of a jitted function: its jaxpr with the constants as leading operands."""
    jaxpr = closed.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    debug = jaxpr.debug_info
    where = f"{debug.func_filename}:{debug.func_lineno}"
    return intern_cell(_compat.make_jaxpr(inputs, jaxpr.outvars, jaxpr.eqns, name), name, where)


def build_graph(recorder: Recorder, result: Any, granularity: str, may_close_over_tracers: bool = False) -> Graph:
    """The graph of a recorded sample whose function returned `result`."""
    check_result(result, recorder.sample)
    out_leaves, out_tree = jax.tree.flatten(result)
    builder = Builder(recorder, granularity, may_close_over_tracers)
    ops = recorder.ops
    if granularity != "graph" and any(op.primitive is not None for op in ops):
        ops = gather_sums(ops, out_leaves)
    for op in ops:
        builder.add(op)
    output_refs = [builder.whole(leaf) for leaf in out_leaves]
    groups = builder.groups()
    read_outside = _read_outside(builder, groups, output_refs)

    tables, kept = builder.tables, builder.kept
    input_numbers: dict[Input, int] = {}
    shared_numbers: dict[int, int] = {}
    node_kinds: list[int] = []
    node_operands: list[list[Ref]] = []
    made_at: list[dict[int, tuple[int, int]]] = [{}] * len(kept)  # of an operation's outputs: node and place there

    def row(ref: Ref) -> Ref:
        if type(ref) is Input:
            input_numbers.setdefault(ref, len(input_numbers))
        elif type(ref) is Shared:
            shared_numbers.setdefault(ref.number, len(shared_numbers))
        return ref

    for members in groups:
        if read_outside[members[0]] is None:
            continue
        ops = [kept[number] for number in members]
        first = ops[0]
        boundary = builder.is_boundary(first)
        outputs = []
        for number, op in zip(members, ops, strict=True):
            made_at[number] = {}
            for output, value in enumerate(op.outputs):
                if boundary or read_outside[number] >> output & 1:  # type: ignore[operator]
                    made_at[number][output] = (len(node_kinds), len(outputs))
                    outputs.append(value)
        cell, operands = builder.cell_of(ops, outputs)
        tables.sources.note_group(cell, ops)
        refs = builder.inputs[members[0]] if first.cell is not None else [builder.ref(operand) for operand in operands]
        passed = _passed(first, operands)
        is_sum = isinstance(cell, SumCell)
        binding: list[int] = []
        reads: list[Ref] = []
        for operand, ref, is_passed in zip(operands, refs, passed, strict=True):
            if type(ref) is Shared:
                if is_passed and type(operand) is not Value and _is_small(operand):
                    ref = builder.constant_row(operand)
                elif not is_sum:
                    binding.append(ref.number)
                    continue
            binding.append(ROW)
            reads.append(row(ref))
        node_kinds.append(tables.kind(cell, (ROW,) if is_sum else tuple(binding)))
        node_operands.append(reads)
    for ref in output_refs:
        row(ref)

    given = len(input_numbers) + len(shared_numbers)
    counts = [len(tables.kind_classes[kind]) for kind in node_kinds]
    base = list(itertools.accumulate(counts, initial=given))

    def number_of(ref: Ref) -> int:
        if type(ref) is Made:
            node, output = made_at[ref.op][ref.output]
            return base[node] + output
        if type(ref) is Input:
            return input_numbers[ref]
        assert type(ref) is Shared
        return len(input_numbers) + shared_numbers[ref.number]

    classes = [tables.class_of(_input_aval(builder, ref)) for ref in input_numbers]
    classes += [tables.shared_class[shared] for shared in shared_numbers]
    for kind in node_kinds:
        classes += tables.kind_classes[kind]
    start = np.array(list(itertools.accumulate(map(len, node_operands), initial=0)), np.int32)
    operands_array = np.array([number_of(ref) for reads in node_operands for ref in reads], np.int32)
    producer = np.repeat(np.arange(-1, len(counts), dtype=np.int32), [given, *counts])
    return Graph(
        tables=tables,
        leaf_shapes=tuple(tuple(aval.shape) for aval in builder.leaf_avals),
        constants=tuple(value for _, value in builder.constants.values()),
        inputs=np.array(list(input_numbers), np.int32).reshape(-1, 3),
        shared_rows=np.array(list(shared_numbers), np.int32),
        kind=np.array(node_kinds, np.int32),
        operand_start=start,
        operands=operands_array,
        value_class=np.array(classes, np.int32),
        outputs=np.array([number_of(ref) for ref in output_refs], np.int32),
        out_tree=out_tree,
        level=levels_of(producer, start, operands_array),
    )


def _is_small(operand: Any) -> bool:
    return not _compat.is_tracer(operand) and np.size(operand) <= SMALL


def _read_outside(builder: Builder, groups: Sequence[Sequence[int]], results: Sequence[Ref]) -> list[int | None]:
    """For each operation a bit set of its outputs that are read outside of its group; None for all operations of groups
    that the results do not depend on and that have no effects."""
    group_of = [0] * len(builder.kept)
    for number, members in enumerate(groups):
        for op in members:
            group_of[op] = number
    bits = [0] * len(builder.kept)
    for ref in results:
        if type(ref) is Made:
            bits[ref.op] |= 1 << ref.output
    needed = [False] * len(groups)
    for number in reversed(range(len(groups))):
        members = groups[number]
        if any(bits[op] or builder.kept[op].effects for op in members):
            needed[number] = True
            for op in members:
                for ref in builder.inputs[op]:
                    if type(ref) is Made and group_of[ref.op] != number:
                        bits[ref.op] |= 1 << ref.output
    return [own if needed[group] else None for own, group in zip(bits, group_of, strict=True)]


def _passed(op: Op, operands: Sequence[Any]) -> list[bool]:
    """Which operands of a call are its arguments, as opposed to what it closes over."""
    if op.cell is not None:
        return list(op.passed)
    if op.is_users_jit:
        return [i >= len(op.params["jaxpr"].consts) for i in range(len(operands))]
    return [False] * len(operands)


def _input_aval(builder: Builder, ref: Input) -> Any:
    aval = builder.leaf_avals[ref.leaf]
    return _compat.make_aval(aval.shape[ref.depth :], aval.dtype) if ref.depth else aval
