"""The types of steps, and segments expressed in these types.

As in a batch, kinds with equal bodies are one type. An operand is a row if it is a row in one of the kinds, and the
type has all outputs. The types cover all segments so far. A new kind changes the types, and the program is compiled
again.
"""

import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jitbatch.batch.types import unite
from jitbatch.ir.tables import ROW, Kind, Tables
from jitbatch.rollout.segments import ZERO, Node, PinnedRows, Segment


class StepType(NamedTuple):
    """A type of steps.

    Attributes:
        kind: its kind.
        terms: for a reduction, the number of terms that it has room for; 0 for other types.
    """

    kind: Kind
    terms: int

    @property
    def operands(self) -> int:
        """The number of row operands."""
        return self.terms or self.kind.rows


class Meaning(NamedTuple):
    """The translation of a kind's nodes to a type.

    Attributes:
        type_id: the type.
        operands: for each row operand of the type, the row operand of the kind; or a pinned row, below `ZERO`.
        outputs: for each output of the kind, the output of the type.
    """

    type_id: int
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


class Types:
    """A decision about types.

    Attributes:
        tables: the tables of the kinds.
        types: the types, in the order in which their steps run in a round.
        operands, outputs: the largest numbers of row operands and of outputs of a type.
        reads, writes: for each type, the value classes of its row operands, and of its outputs.
        classes: all of these.
    """

    def __init__(
        self, kinds: Sequence[tuple[int, int]], edges: set[tuple[int, int]], tables: Tables, pinned: PinnedRows
    ):
        self.tables = tables
        united, outputs = unite([tables.kinds[kind_id] for kind_id, _ in kinds])
        found = [StepType(kind, terms) for kind, (_, terms) in zip(united, kinds, strict=True)]
        distinct = list(dict.fromkeys(found))
        type_of = {kind: distinct.index(step_type) for kind, step_type in zip(kinds, found, strict=True)}
        between = {
            (type_of[a], type_of[b])
            for a in kinds
            for b in kinds
            if (a[0], b[0]) in edges and type_of[a] != type_of[b]
        }  # fmt: skip
        order = _in_order(len(distinct), between)
        place = {type_id: position for position, type_id in enumerate(order)}
        self.types = tuple(distinct[type_id] for type_id in order)
        self.meanings = {
            kind: Meaning(place[type_of[kind]], _operands(tables, kind[0], step_type.kind, pinned), own)
            for kind, step_type, own in zip(kinds, found, outputs, strict=True)
        }
        self.reads = [_classes_read(step_type, tables) for step_type in self.types]
        self.writes = [tuple(map(tables.class_of, step_type.kind.cell.out_avals)) for step_type in self.types]
        self.classes = frozenset(itertools.chain(*self.reads, *self.writes))
        self.operands = max((step_type.operands for step_type in self.types), default=0)
        self.outputs = max(map(len, self.writes), default=0)
        self.shared = tuple(sorted({shared_id for one in self.types for shared_id in one.kind.shared_ids}))


def _operands(tables: Tables, kind_id: int, united: Kind, pinned: PinnedRows) -> tuple[int, ...]:
    """For each row operand of a united kind, the row operand of the kind, or a pinned row."""
    binding = tables.kinds[kind_id].binding
    return tuple(
        binding[:slot].count(ROW) if binding[slot] == ROW else pinned.shared(tables, binding[slot])
        for slot in united.row_slots
    )


def _classes_read(step_type: StepType, tables: Tables) -> tuple[int, ...]:
    classes = tuple(map(tables.class_of, step_type.kind.row_avals))
    return classes * step_type.terms if step_type.terms else classes


def _in_order(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """An order of the types in which most types read earlier ones. Next is always a type that waits for the fewest
    others."""
    remaining = list(range(count))
    order = []
    while remaining:
        waits = {node: sum(a in remaining for a, b in edges if b == node) for node in remaining}
        chosen = min(remaining, key=lambda node: (waits[node], node))
        order.append(chosen)
        remaining.remove(chosen)
    return order


class KnownTypes:
    """The types of all segments so far."""

    def __init__(self, tables: Tables, pinned: PinnedRows):
        self._tables = tables
        self._pinned = pinned
        self._lock = threading.Lock()
        self._kinds: dict[tuple[int, int], None] = {}
        self._edges: set[tuple[int, int]] = set()
        self._types: Types | None = None

    def learn(self, segment: Segment) -> None:
        """Add the kinds of a segment."""
        with self._lock:
            made_by = {value: node.kind_id for node in segment.nodes for value in node.makes}
            for node in segment.nodes:
                key = node.kind_id, terms_of(node, self._tables)
                if key not in self._kinds:
                    self._kinds[key] = None
                    self._types = None
                self._edges.update((made_by[value], node.kind_id) for value in node.reads if value in made_by)

    def decided(self) -> Types:
        """The types of all kinds so far."""
        with self._lock:
            if self._types is None:
                self._types = Types(list(self._kinds), self._edges, self._tables, self._pinned)
            return self._types


def terms_of(node: Node, tables: Tables) -> int:
    """The number of terms that a reduction has room for: 2, 4, 8, ...; 0 for other nodes."""
    return 1 << max(len(node.reads) - 1, 1).bit_length() if tables.kinds[node.kind_id].is_variadic else 0


class Lowered(NamedTuple):
    """One or several segments, expressed in types.

    Attributes:
        types: the types.
        steps: int32 [nodes]; for each node, its round times the number of types, plus its type.
        reads: int32 [nodes, operands]; the values that each node reads, `ZERO` in unused columns.
        makes: int32 [nodes, outputs]; the output values of each node, -1 for an output without a value.
        rounds: the number of rounds.
        pins: the ids of the pinned rows that are read.
    """

    types: Types
    steps: np.ndarray
    reads: np.ndarray
    makes: np.ndarray
    rounds: int
    pins: frozenset[int]


def joined(parts: Sequence[Lowered]) -> Lowered:
    """Consecutive segments as one."""
    if len(parts) == 1:
        return parts[0]
    types = parts[0].types
    ends = list(itertools.accumulate(part.rounds for part in parts))
    steps = [part.steps + begin * len(types.types) for part, begin in zip(parts, (0, *ends[:-1]), strict=True)]
    return Lowered(
        types,
        np.concatenate(steps),
        np.concatenate([part.reads for part in parts]),
        np.concatenate([part.makes for part in parts]),
        ends[-1],
        frozenset[int]().union(*(part.pins for part in parts)),
    )


def lowered(segment: Segment, types: Types) -> Lowered:
    """A segment expressed in types. It is cached with the segment until the types change."""
    found = segment.lowered
    if found is None or found.types is not types:
        found = segment.lowered = _lower(segment, types)
    return found


def _lower(segment: Segment, types: Types) -> Lowered:
    tables = types.tables
    steps: list[int] = []
    reads: list[int] = []
    makes: list[int] = []
    rounds = 0
    done: dict[int, tuple[int, int]] = {}  # the round and the type of each value
    for node in segment.nodes:
        terms = terms_of(node, tables)
        meaning = types.meanings[node.kind_id, terms]
        read = [node.reads[o] if o >= 0 else o for o in meaning.operands]
        if terms:
            is_sum = tables.kinds[node.kind_id].operation == "sum"
            read = [*node.reads, *[ZERO if is_sum else node.reads[-1]] * (terms - len(node.reads))]
        reads += read + [ZERO] * (types.operands - len(read))
        earlier = [done[value] for value in node.reads if value in done]
        in_round = max((there + (type_id >= meaning.type_id) for there, type_id in earlier), default=0)
        made = [-1] * types.outputs
        for output, value in zip(meaning.outputs, node.makes, strict=True):
            made[output] = value
            done[value] = in_round, meaning.type_id
        makes += made
        steps.append(in_round * len(types.types) + meaning.type_id)
        rounds = max(rounds, in_round + 1)
    return Lowered(
        types,
        np.array(steps, np.int32),
        np.array(reads, np.int32).reshape(len(steps), types.operands),
        np.array(makes, np.int32).reshape(len(steps), types.outputs),
        rounds,
        segment.pins.union(ZERO - 1 - value for value in reads if value < ZERO),
    )
