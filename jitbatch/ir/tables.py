"""The tables that all graphs of a function refer to: value classes, shared values and node kinds.

The tables intern their entries: equal entries have equal ids in every graph. So a batch concatenates graphs without
translating ids.
"""

import hashlib
import itertools
import math
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jitbatch.core.reference.numbering import Ends
from jitbatch.ir.cell import Cell, Identity, ReductionCell, array_key
from jitbatch.ir.sources import Sources
from jitbatch.util import compat
from jitbatch.util.caches import Cache

ROW = -1
"""In the binding of a kind: this operand is a row, which differs from node to node."""

MAX_DECISIONS = 64
"""The number of decisions about types that the tables cache, one for each profile of a batch."""

MAX_STATICS = 256
"""The number of static parts of plans in the cache. Equal static parts are one object, which is cheap to compare. The
cache of the causes of compilations has the same size."""


@dataclass(frozen=True)
class ValueClass:
    """A shape and a dtype. All values of one class lie in one arena."""

    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{jax.dtypes.canonicalize_dtype(self.dtype) if not self.is_key else self.dtype}{list(self.shape)}"

    @property
    def is_key(self) -> bool:
        return compat.is_prng_key(self.dtype)

    @property
    def nbytes(self) -> int:
        """The size of a value in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class SharedLeaf:
    """A leaf of the shared arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class SharedArray:
    """A concrete array in a sample's code or closure, or a tracer of an outer transformation."""

    value: Any


@dataclass(frozen=True)
class SharedResult:
    """An output of a cell with only shared operands. It is computed once for each batch, not for each sample."""

    cell: Cell
    operands: tuple[int, ...]
    output: int


SharedValue = SharedLeaf | SharedArray | SharedResult


@dataclass(frozen=True)
class Kind:
    """The kind of a node: a cell, and its binding. The binding has, for each operand, a shared value or `ROW`."""

    cell: Cell
    binding: tuple[int, ...]

    @cached_property
    def rows(self) -> int:
        """The number of operands that are rows."""
        return self.binding.count(ROW)

    @cached_property
    def vmapped(self) -> tuple[bool, ...]:
        """For each operand, whether it is a row; `jax.vmap` maps rows."""
        return tuple(bound == ROW for bound in self.binding)

    @cached_property
    def row_slots(self) -> tuple[int, ...]:
        """The indices of the operands that are rows."""
        return tuple(slot for slot, bound in enumerate(self.binding) if bound == ROW)

    @cached_property
    def row_avals(self) -> tuple[Any, ...]:
        """The avals of the operands that are rows."""
        return tuple(self.cell.in_avals[slot] for slot in self.row_slots)

    @cached_property
    def shared_ids(self) -> tuple[int, ...]:
        """The ids of the shared values in the binding."""
        return tuple(bound for bound in self.binding if bound != ROW)

    @property
    def is_variadic(self) -> bool:
        """Whether nodes read any number of rows: true for reductions."""
        return isinstance(self.cell, ReductionCell)

    @property
    def operation(self) -> str | None:
        """The operation of a reduction ("sum", "max" or "min"); None for other kinds."""
        return self.cell.operation if isinstance(self.cell, ReductionCell) else None

    @property
    def shapes(self) -> str:
        """The dtypes and array shapes of row operands and outputs, such as `"float32[4], int32[] -> float32[4]"`."""

        def names(avals: Iterable[Any]) -> str:
            return ", ".join(aval.str_short() for aval in avals)

        return f"{names(self.row_avals)}{', ...' if self.is_variadic else ''} -> {names(self.cell.out_avals)}"


End = TypeVar("End")
"""What an edge connects: kinds, kind ids, or type ids."""


class Edge(NamedTuple, Generic[End]):
    """Operand `slot` of some node of `reader` reads output `output` of some node of `read`.

    Between kinds, slots count all operands. Between types, they count operands that are rows.
    """

    read: End
    output: int
    reader: End
    slot: int


Entry = TypeVar("Entry")


class Interned(Generic[Entry]):
    """A growing table of distinct entries. The id of an entry is its index. Equal entries have one id."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def number(self, entry: Entry, key: Hashable = None) -> int:
        """The id of an entry. A new entry is added. Entries are compared by `key`, or by themselves without one."""
        key = entry if key is None else key
        found = self._numbers.get(key)
        if found is None:
            with self._lock:
                found = self._numbers.get(key)
                if found is None:  # readers take no lock, so the entry is added before its id
                    found = len(self.entries)
                    self.entries.append(entry)
                    self._numbers[key] = found
        return found

    def find(self, key: Hashable) -> int | None:
        """The id of the entry with this key, None if the table has none."""
        return self._numbers.get(key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._numbers

    def __getitem__(self, entry_id: int) -> Entry:
        return self.entries[entry_id]

    def __len__(self) -> int:
        return len(self.entries)


def _as_array(value: Any, aval: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value, aval.dtype)


def _ends(kinds: Sequence[Kind], classes: Sequence[tuple[int, ...]]) -> Ends:
    def ints(numbers: Iterable[int]) -> np.ndarray:
        return np.array(list(numbers), np.int32)

    return Ends(
        first_output=ints(itertools.accumulate(map(len, classes), initial=0)),
        out_class=ints(itertools.chain(*classes)),
        first_slot=ints(itertools.accumulate((kind.rows for kind in kinds), initial=0)),
        is_variadic=ints(kind.is_variadic for kind in kinds),
        has_effects=ints(kind.cell.has_effects for kind in kinds),
    )


class Tables:
    """The value classes, shared values and node kinds that the graphs of one function refer to by id, at one
    granularity. Also edges, avals, forms of arguments, and outlines of ragged results."""

    def __init__(self, granularity: str = "subgraph") -> None:
        self.granularity = granularity
        self.classes: Interned[ValueClass] = Interned()
        self.shared: Interned[SharedValue] = Interned()
        self.kinds: Interned[Kind] = Interned()
        self.avals: Interned[Any] = Interned()
        self.edges: Interned[Edge[int]] = Interned()
        self.forms: Interned[Any] = Interned()
        self.sources = Sources()
        self.decisions = Cache(MAX_DECISIONS)
        self.statics = Cache(MAX_STATICS)
        self.causes = Cache(MAX_STATICS)
        self.outlines: Interned[Any] = Interned()
        self.out_trees: Interned[Any] = Interned()
        self.holds_tracers = False  # plans and programs of tracers cannot be used again
        self.shared_class: list[int] = []
        self.kind_classes: list[tuple[int, ...]] = []
        self._ends = _ends([], [])
        self._kind_numbers: dict[tuple[Cell, tuple[int, ...]], int] = {}
        self._edge_numbers: dict[tuple[int, int], int] = {}
        self._aval_classes: dict[int, int] = {}
        self._class_formats: list[tuple[str, int, int]] = []
        self._element_avals: dict[tuple[int, int | None], tuple[Any, int]] = {}
        self._class_orders: dict[int, tuple[Any, ...]] = {}
        self.tuple_forms: dict[tuple[Any, ...], int] = {}  # by the class of a named tuple and the forms of its items
        self.dict_forms: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}  # by keys and forms; with the sorted keys
        self._leaf_forms: dict[tuple[int, int], int] = {}
        self._shared_orders: dict[int, tuple[Any, ...]] = {}
        self._lock = threading.Lock()

    @property
    def ends(self) -> Ends:
        """The possible ends of edges for all kinds so far."""
        ends = self._ends
        if len(ends.is_variadic) < len(self.kind_classes):
            classes = self.kind_classes[:]
            ends = self._ends = _ends(self.kinds.entries[: len(classes)], classes)
        return ends

    def class_formats(self) -> list[tuple[str, int, int]]:
        """For each value class, the kind of its dtype, its itemsize, and the size of a value in bytes. The kind is ""
        for values that are not plain numbers, such as keys."""
        known = self._class_formats
        for value_class in self.classes.entries[len(known) :]:
            kind = "" if value_class.is_key or value_class.dtype.kind not in "biufc" else value_class.dtype.kind
            known = [*known, (kind, value_class.dtype.itemsize, value_class.nbytes)]
        self._class_formats = known
        return known

    def class_of(self, aval: Any) -> int:
        """The id of the value class of an aval."""
        return self.classes.number(ValueClass(tuple(aval.shape), aval.dtype))

    def aval_class(self, aval_id: int) -> int:
        """The id of the value class of the aval with this id."""
        if aval_id not in self._aval_classes:
            self._aval_classes[aval_id] = self.class_of(self.avals[aval_id])
        return self._aval_classes[aval_id]

    def element_aval(self, aval_id: int, length: int | None) -> tuple[Any, int]:
        """The aval of an element of arrays of aval `aval_id`, or of a slice of `length` elements; and its id."""
        found = self._element_avals.get((aval_id, length))
        if found is None:
            aval = self.avals[aval_id]
            shape = aval.shape[1:] if length is None else (length, *aval.shape[1:])
            aval = compat.make_aval(shape, aval.dtype, aval.weak_type)
            found = self._element_avals[aval_id, length] = (aval, self.avals.number(aval))
        return found

    def form(self, *description: Hashable) -> int:
        """The form of an argument that is not just a row: a negative id for a description of the argument. Calls of
        decorated functions depend on it."""
        return -1 - self.forms.number(description)

    def shared_form(self, aval: int, shared: int) -> int:
        """The form of a shared value."""
        return self.form("shared", aval, shared)

    def leaf_form(self, aval: int, leaf: int) -> int:
        """The form of a leaf of the shared arguments."""
        found = self._leaf_forms.get((aval, leaf))
        if found is None:
            shared_id = self.share(SharedLeaf(leaf), self.avals[aval])
            found = self._leaf_forms[aval, leaf] = self.shared_form(aval, shared_id)
        return found

    def shared_of_form(self, form: int) -> int:
        """The id of the shared value with this form."""
        return self.forms[-1 - form][2]

    def class_order(self, class_id: int) -> tuple[Any, ...]:
        """A sort key for value classes that does not depend on the order of recording."""
        found = self._class_orders.get(class_id)
        if found is None:
            found = self._class_orders[class_id] = self.classes[class_id].shape, str(self.classes[class_id].dtype)
        return found

    def share(self, entry: SharedValue, aval: Any) -> int:
        """The id of a shared value with this aval. A new one is added."""
        key: Hashable = entry
        if isinstance(entry, SharedArray):
            traced = compat.is_tracer(entry.value)
            key = Identity(entry.value) if traced else (array_key(_as_array(entry.value, aval)), bool(aval.weak_type))
            self.holds_tracers |= traced
            if isinstance(entry.value, np.ndarray) and key not in self.shared:
                entry = SharedArray(entry.value.copy())  # NumPy arrays may change; a recording must not
        with self._lock:
            shared_id = self.shared.number(entry, key)
            if shared_id == len(self.shared_class):
                self.shared_class.append(self.class_of(aval))
        return shared_id

    def edge_number(self, output: int, slot: int) -> int:
        """The id of the edge between an output and a slot, which are indices in `ends`."""
        found = self._edge_numbers.get((output, slot))
        if found is None:
            ends = self.ends
            read = int(ends.first_output.searchsorted(output, side="right")) - 1
            reader = int(ends.first_slot.searchsorted(slot, side="right")) - 1
            rows = self.kinds[reader].row_slots
            edge = Edge(read, output - int(ends.first_output[read]), reader, rows[slot - int(ends.first_slot[reader])])
            found = self._edge_numbers[output, slot] = self.edges.number(edge)
        return found

    def shared_order(self, shared_id: int) -> tuple[Any, ...]:
        """A sort key for shared values that does not depend on the order of recording, except for tracers."""
        remaining = [] if shared_id in self._shared_orders else [shared_id]
        while remaining:
            entry = self.shared[remaining[-1]]
            operands = entry.operands if isinstance(entry, SharedResult) else ()
            unknown = [operand for operand in operands if operand not in self._shared_orders]
            if not unknown:
                known = remaining.pop()
                self._shared_orders[known] = self._order_of(known, entry)
            remaining += unknown
        return self._shared_orders[shared_id]

    def _order_of(self, shared_id: int, entry: SharedValue) -> tuple[Any, ...]:
        if isinstance(entry, SharedLeaf):
            return 0, entry.index
        if isinstance(entry, SharedResult):
            call = (entry.cell.digest, [self._shared_orders[operand] for operand in entry.operands], entry.output)
            return 1, hashlib.sha256(repr(call).encode()).hexdigest()
        if compat.is_tracer(entry.value):
            return 3, shared_id
        bits = repr(array_key(_as_array(entry.value, jax.typeof(entry.value))))
        return 2, hashlib.sha256(bits.encode()).hexdigest()

    def binding_order(self, binding: tuple[int, ...]) -> tuple[Any, ...]:
        """A sort key for bindings, made of the sort keys of their shared values."""
        return tuple(() if shared_id == ROW else self.shared_order(shared_id) for shared_id in binding)

    def kind(self, cell: Cell, binding: tuple[int, ...]) -> int:
        """The id of the kind of a cell and a binding. A new one is added."""
        kind_id = self._kind_numbers.get((cell, binding))
        if kind_id is None:
            with self._lock:
                kind_id = self.kinds.number(Kind(cell, binding))
                if kind_id == len(self.kind_classes):
                    self.kind_classes.append(tuple(map(self.class_of, cell.out_avals)))
            self._kind_numbers[cell, binding] = kind_id
        return kind_id
