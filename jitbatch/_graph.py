"""The graph of one recorded sample, and the tables that all graphs of a function refer to.

A `Graph` is a struct of small integer arrays. Everything in it that is not an integer lives in the `Tables` of
the function it was recorded for: value classes, shared values and node kinds, each interned, so that equal things
have equal numbers in every graph and a batch of graphs can be concatenated without translating anything.
"""

import hashlib
import itertools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jitbatch import _compat
from jitbatch._caches import Cache
from jitbatch._canonical import Cell, Identity, SumCell, array_key
from jitbatch._errors import VerifyError
from jitbatch._items import Items, split_items
from jitbatch._layers import find_layers
from jitbatch._leaves import InputRows, find_input_rows
from jitbatch._sources import Sources

ROW = -1
"""In a kind's binding: this operand is a row of the batch, different for each node."""

MAX_DECISIONS = 64
"""How many batches of different kinds of node the types are remembered of."""

MAX_STATICS = 256
"""How many static parts of plans are remembered: equal ones are one object, which is cheap to compare. As many are the
reasons why plans were compiled."""


@dataclass(frozen=True)
class ValueClass:
    """The values that can lie in one arena: those of one shape and dtype."""

    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{jax.dtypes.canonicalize_dtype(self.dtype) if not self.is_key else self.dtype}{list(self.shape)}"

    @property
    def is_key(self) -> bool:
        return _compat.is_prng_key(self.dtype)


@dataclass(frozen=True)
class SharedLeaf:
    """A leaf of the shared arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class SharedArray:
    """A concrete array that a sample closes over or passes on, or a tracer of an outer transformation."""

    value: Any


@dataclass(frozen=True)
class SharedResult:
    """An output of a cell whose operands are all shared: computed once a batch, not once a sample."""

    cell: Cell
    operands: tuple[int, ...]
    output: int


SharedValue = SharedLeaf | SharedArray | SharedResult


@dataclass(frozen=True)
class Kind:
    """What a node computes: a cell, and which of its operands are which shared values (`ROW`: none)."""

    cell: Cell
    binding: tuple[int, ...]

    @cached_property
    def rows(self) -> int:
        return self.binding.count(ROW)

    @property
    def is_variadic(self) -> bool:
        """Whether a node reads any number of rows."""
        return isinstance(self.cell, SumCell)


class Edge(NamedTuple):
    """Some node of kind `reader` has output `output` of some node of kind `read` as its operand `slot`."""

    read: int
    output: int
    reader: int
    slot: int


Entry = TypeVar("Entry")


class Interned(Generic[Entry]):
    """A growing table: the number of an entry is where its equal was put first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def number(self, entry: Entry, key: Hashable = None) -> int:
        key = entry if key is None else key
        found = self._numbers.get(key)
        if found is None:
            with self._lock:
                found = self._numbers.setdefault(key, len(self.entries))
                if found == len(self.entries):
                    self.entries.append(entry)
        return found

    def __getitem__(self, number: int) -> Entry:
        return self.entries[number]

    def __len__(self) -> int:
        return len(self.entries)


def _as_array(value: Any, aval: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)


class Tables:
    """The value classes, shared values and node kinds that graphs of one granularity refer to by number; outlines of
    ragged results."""

    def __init__(self, granularity: str = "subgraph") -> None:
        self.granularity = granularity
        self.classes: Interned[ValueClass] = Interned()
        self.shared: Interned[SharedValue] = Interned()
        self.kinds: Interned[Kind] = Interned()
        self.avals: Interned[Any] = Interned()
        self.edges: Interned[Edge] = Interned()
        self.forms: Interned[Any] = Interned()
        self.sources = Sources()
        self.decisions = Cache(MAX_DECISIONS)
        self.statics = Cache(MAX_STATICS)
        self.causes = Cache(MAX_STATICS)
        self.outlines: Interned[Any] = Interned()
        self.shared_class: list[int] = []
        self.kind_classes: list[tuple[int, ...]] = []
        self._makes = np.zeros(0, np.int32)
        self._kind_numbers: dict[tuple[Cell, tuple[int, ...]], int] = {}
        self._edge_numbers: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}
        self._ends: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self._aval_classes: dict[int, int] = {}
        self._element_avals: dict[tuple[int, int | None], tuple[Any, int]] = {}
        self._class_orders: dict[int, tuple[Any, ...]] = {}
        self._leaf_forms: dict[tuple[int, int], int] = {}
        self._shared_orders: dict[int, tuple[Any, ...]] = {}
        self._lock = threading.Lock()

    @property
    def makes(self) -> np.ndarray:
        """int [kinds]; how many values a node of each kind makes."""
        makes = self._makes
        if len(makes) < len(self.kind_classes):
            makes = self._makes = np.array([len(classes) for classes in self.kind_classes], np.int32)
        return makes

    def class_of(self, aval: Any) -> int:
        return self.classes.number(ValueClass(tuple(aval.shape), aval.dtype))

    def aval_class(self, number: int) -> int:
        """The class of values of the aval with this number."""
        if number not in self._aval_classes:
            self._aval_classes[number] = self.class_of(self.avals[number])
        return self._aval_classes[number]

    def element_aval(self, number: int, length: int | None) -> tuple[Any, int]:
        """The aval, with its number, of an element of arrays of an aval, or of a slice of some length."""
        found = self._element_avals.get((number, length))
        if found is None:
            aval = self.avals[number]
            shape = aval.shape[1:] if length is None else (length, *aval.shape[1:])
            aval = _compat.make_aval(shape, aval.dtype, aval.weak_type)
            found = self._element_avals[number, length] = (aval, self.avals.number(aval))
        return found

    def form(self, *description: Hashable) -> int:
        """The form of an argument that is not just a row: a negative number for what decorated functions that are
        called on it depend on."""
        return -1 - self.forms.number(description)

    def shared_form(self, aval: int, shared: int) -> int:
        """The form of a shared value."""
        return self.form("shared", aval, shared)

    def leaf_form(self, aval: int, leaf: int) -> int:
        """The form of a leaf of the shared arguments."""
        found = self._leaf_forms.get((aval, leaf))
        if found is None:
            number = self.share(SharedLeaf(leaf), self.avals[aval])
            found = self._leaf_forms[aval, leaf] = self.shared_form(aval, number)
        return found

    def shared_of_form(self, form: int) -> int:
        return self.forms[-1 - form][2]

    def class_order(self, number: int) -> tuple[Any, ...]:
        """A key that orders value classes in the same way whatever was recorded first."""
        found = self._class_orders.get(number)
        if found is None:
            found = self._class_orders[number] = self.classes[number].shape, str(self.classes[number].dtype)
        return found

    def share(self, entry: SharedValue, aval: Any) -> int:
        """The number of a shared value."""
        key: Hashable = entry
        if isinstance(entry, SharedArray):
            traced = _compat.is_tracer(entry.value)
            key = Identity(entry.value) if traced else (array_key(_as_array(entry.value, aval)), bool(aval.weak_type))
        with self._lock:
            number = self.shared.number(entry, key)
            if number == len(self.shared_class):
                self.shared_class.append(self.class_of(aval))
        return number

    def ends(self, kind: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The ends of edges at nodes of a kind: the kind and the number of each output, and of each slot that is a
        row."""
        found = self._ends.get(kind)
        if found is None:
            slots = [slot for slot, bound in enumerate(self.kinds[kind].binding) if bound == ROW]
            outputs = range(len(self.kind_classes[kind]))
            found = self._ends[kind] = [(kind, output) for output in outputs], [(kind, slot) for slot in slots]
        return found

    def edge_number(self, read: tuple[int, int], reader: tuple[int, int]) -> int:
        """The number of the edge between two ends."""
        found = self._edge_numbers.get((read, reader))
        if found is None:
            found = self._edge_numbers[read, reader] = self.edges.number(Edge(*read, *reader))
        return found

    def shared_order(self, number: int) -> tuple[Any, ...]:
        """A key that orders shared values in the same way whatever was recorded first."""
        remaining = [] if number in self._shared_orders else [number]
        while remaining:
            entry = self.shared[remaining[-1]]
            operands = entry.operands if isinstance(entry, SharedResult) else ()
            unknown = [operand for operand in operands if operand not in self._shared_orders]
            if not unknown:
                known = remaining.pop()
                self._shared_orders[known] = self._order_of(known, entry)
            remaining += unknown
        return self._shared_orders[number]

    def _order_of(self, number: int, entry: SharedValue) -> tuple[Any, ...]:
        if isinstance(entry, SharedLeaf):
            return 0, entry.index
        if isinstance(entry, SharedResult):
            call = (entry.cell.digest, [self._shared_orders[operand] for operand in entry.operands], entry.output)
            return 1, hashlib.sha256(repr(call).encode()).hexdigest()
        if _compat.is_tracer(entry.value):
            return 3, number
        bits = repr(array_key(_as_array(entry.value, jax.typeof(entry.value))))
        return 2, hashlib.sha256(bits.encode()).hexdigest()

    def binding_order(self, binding: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(() if number == ROW else self.shared_order(number) for number in binding)

    def kind(self, cell: Cell, binding: tuple[int, ...]) -> int:
        """The number of a node kind."""
        number = self._kind_numbers.get((cell, binding))
        if number is None:
            with self._lock:
                number = self.kinds.number(Kind(cell, binding))
                if number == len(self.kind_classes):
                    self.kind_classes.append(tuple(map(self.class_of, cell.out_avals)))
            self._kind_numbers[cell, binding] = number
        return number


@dataclass(frozen=True, eq=False)
class Graph:
    """What one sample computes.

    Values are numbered: first the inputs, then the shared values that are needed as rows, then the outputs of
    the nodes in order. Nodes are in topological order.

    Attributes:
        tables: what the numbers below refer to.
        leaf_shapes: the shapes of the sample's array leaves, then those of the constants.
        constants: small arrays in the sample's code that are rows, as its leaves are; they follow the leaves.
        inputs: int32 [inputs, 3]; for each its leaf, how many leading axes of the leaf are indexed, and the flat
            index into these axes. `(3, 0, 0)` is the whole leaf 3, `(3, 1, 5)` its row 5.
        shared_rows: int32 [shared rows]; numbers of shared values.
        kind: int32 [nodes]; what each node computes.
        operand_start: int32 [nodes + 1]; node i reads `operands[operand_start[i]:operand_start[i + 1]]`.
        operands: int32; values, one for each `ROW` in the binding of the node's kind.
        value_class: int32 [values]; the class of each value.
        outputs: int32; the values that are the leaves of the sample's result.
        out_tree: their tree.
        structure: the structure of the sample that was recorded (see `_context`).
        typed: what the graph looks like in terms of the types of some batches (see `_typed`).
    """

    tables: Tables = field(repr=False)
    leaf_shapes: tuple[tuple[int, ...], ...]
    constants: tuple[Any, ...]
    inputs: np.ndarray
    shared_rows: np.ndarray
    kind: np.ndarray
    operand_start: np.ndarray
    operands: np.ndarray
    value_class: np.ndarray
    outputs: np.ndarray
    out_tree: Any
    structure: Any = field(default=None, repr=False)
    typed: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def node_count(self) -> int:
        return len(self.kind)

    @cached_property
    def first_node_value(self) -> int:
        return len(self.inputs) + len(self.shared_rows)

    @cached_property
    def node_values(self) -> np.ndarray:
        """int32 [nodes + 1]; node i has the values `node_values[i]` up to `node_values[i + 1]`."""
        values = np.empty(self.node_count + 1, np.int32)
        values[0] = self.first_node_value
        values[1:] = self.tables.makes[self.kind]
        return values.cumsum(dtype=np.int32)

    @cached_property
    def producer(self) -> np.ndarray:
        """int32 [values]; the node that makes each value, -1 for inputs and shared values."""
        nodes = np.repeat(np.arange(self.node_count, dtype=np.int32), np.diff(self.node_values))
        return np.concatenate([np.full(self.first_node_value, -1, np.int32), nodes])

    @cached_property
    def level(self) -> np.ndarray:
        """int32 [nodes]; 0 for nodes that read no other node, else one more than the highest level read."""
        return levels_of(self.producer, self.operand_start, self.operands)

    @cached_property
    def kinds_present(self) -> np.ndarray:
        return np.unique(self.kind)

    @cached_property
    def kind_sizes(self) -> np.ndarray:
        """int [2, kinds present]; how many nodes each kind has, and how many layers (see `_layers`)."""
        present, kind, counts = np.unique(self.kind, return_inverse=True, return_counts=True)
        read = self.producer[self.operands]
        reader = np.repeat(np.arange(self.node_count), np.diff(self.operand_start))
        layer = find_layers(kind, self.level, reader[read >= 0], read[read >= 0])
        layers = np.zeros(len(present), np.int64)
        np.maximum.at(layers, kind, layer + 1)
        return np.stack([counts, layers])

    @cached_property
    def edges_present(self) -> np.ndarray:
        """The numbers of the edges between kinds of node, each once."""
        kinds = self.kind.tolist()
        ends = {kind: self.tables.ends(kind) for kind in set(kinds)}
        # Of each value its kind of node and which output it is; of each operand its kind of node and which row it is.
        made: list[Any] = [None] * self.first_node_value
        made += itertools.chain.from_iterable([ends[kind][0] for kind in kinds])
        rows = [ends[kind][1] for kind in kinds]
        variadic = {kind for kind in ends if self.tables.kinds[kind].is_variadic}
        if variadic:  # all terms of a sum are the same
            for node in [node for node, kind in enumerate(kinds) if kind in variadic]:
                rows[node] = rows[node] * int(self.operand_start[node + 1] - self.operand_start[node])
        readers = itertools.chain.from_iterable(rows)
        pairs = {*zip(map(made.__getitem__, self.operands.tolist()), readers, strict=True)}
        numbers = [self.tables.edge_number(read, reader) for read, reader in pairs if read is not None]
        return np.array(sorted(numbers), np.int64)

    @cached_property
    def input_rows(self) -> InputRows:
        """Which leaves of a sample are used, and where the inputs are among their rows."""
        classes = self.tables.classes
        return find_input_rows(
            self.inputs, self.value_class[: len(self.inputs)], lambda number: classes[number].dtype, self.leaf_shapes,
            self.constants,
        )  # fmt: skip

    @cached_property
    def out_classes(self) -> tuple[int, ...]:
        return tuple(int(c) for c in self.value_class[self.outputs])

    @cached_property
    def items(self) -> Items:
        return split_items(self.out_tree, self.out_classes)

    def verify(self) -> None:
        """Check every invariant above; raise `VerifyError` naming the one that is broken."""

        def check(holds: Any, law: str) -> None:
            if not holds:
                raise VerifyError(f"graph: {law}")

        tables, nodes = self.tables, self.node_count
        check(self.inputs.shape == (len(self.inputs), 3), "inputs has three columns")
        check(len(self.operand_start) == nodes + 1, "one entry a node")
        check(self.operand_start[0] == 0 and self.operand_start[-1] == len(self.operands), "operands are covered")
        check(np.all((self.kind >= 0) & (self.kind < len(tables.kinds))), "kinds exist")
        check(len(self.value_class) == self.node_values[-1], "every value has a class")
        check(np.all((self.shared_rows >= 0) & (self.shared_rows < len(tables.shared))), "shared rows exist")
        check(np.all((self.outputs >= 0) & (self.outputs < len(self.value_class))), "outputs are values")
        check(self.out_tree.num_leaves == len(self.outputs), "one output a leaf of the result")
        for node in range(nodes):
            kind = tables.kinds[self.kind[node]]
            reads = self.operands[self.operand_start[node] : self.operand_start[node + 1]]
            fits = len(reads) > 0 if kind.is_variadic else len(reads) == kind.rows
            check(fits, f"node {node} has an operand for each row of its kind")
            check(np.all((reads >= 0) & (reads < self.node_values[node])), f"node {node} reads only earlier values")
            slots = [slot for slot, bound in enumerate(kind.binding) if bound == ROW]
            wanted = [tables.class_of(kind.cell.in_avals[slot]) for slot in slots]
            wanted *= len(reads) if kind.is_variadic else 1
            check(list(self.value_class[reads]) == wanted, f"node {node} reads values of the right classes")
            made = self.value_class[self.node_values[node] : self.node_values[node + 1]]
            check(tuple(made) == tables.kind_classes[self.kind[node]], f"node {node} makes the values of its kind")

    def __str__(self) -> str:
        def name(value: int) -> str:
            if value < len(self.inputs):
                leaf, depth, row = self.inputs[value]
                return f"in{leaf}" if depth == 0 else f"in{leaf}[{row}]"
            if value < self.first_node_value:
                return f"shared{self.shared_rows[value - len(self.inputs)]}"
            return f"v{value}"

        lines = []
        for node in range(self.node_count):
            kind = self.tables.kinds[self.kind[node]]
            reads = iter(self.operands[self.operand_start[node] : self.operand_start[node + 1]])
            args = [name(next(reads)) if bound == ROW else f"shared{bound}" for bound in kind.binding]
            args += map(name, reads)
            outs = range(self.node_values[node], self.node_values[node + 1])
            made = ", ".join(f"v{v}:{self.tables.classes[self.value_class[v]]}" for v in outs)
            lines.append(f"  {made} = {kind.cell.name}({', '.join(args)})  # level {self.level[node]}")
        result = ", ".join(name(value) for value in self.outputs)
        return "\n".join([f"graph of {self.node_count} nodes", *lines, f"  return {result}"])


def levels_of(producer: np.ndarray, operand_start: np.ndarray, operands: np.ndarray) -> np.ndarray:
    """The level of each node of a graph in topological order."""
    nodes = len(operand_start) - 1
    read = producer[operands]
    inner = read >= 0
    reader = np.repeat(np.arange(nodes), np.diff(operand_start))[inner]
    level = [0] * nodes
    for node, other in zip(reader.tolist(), read[inner].tolist(), strict=True):
        above = level[other] + 1
        if above > level[node]:
            level[node] = above
    return np.array(level, np.int32)
