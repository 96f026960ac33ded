"""`Capacity`: the sizes of a plan, in a form that does not depend on the process.

Inside a process, node kinds, value classes and shared values are ids in the tables of a function. A capacity uses names
that are equal in every process: the name of a kind is the digest of its cell and the names of its shared operands. A
capacity also holds *exemplars*, a few samples without their data. Recording the exemplars makes the kinds again. If a
name is missing after that, the function has changed.
"""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from jitbatch.batch.types import Origin, Profile
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.sizes import LoopSizes, Sizes
from jitbatch.ir.describe import largest
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Edge, Kind, Tables, ValueClass
from jitbatch.plan.saved.schema import MAX_SIZE, from_data, to_data
from jitbatch.plan.saved.trees import Trees
from jitbatch.plan.saved.values import CHANGED, check_shape, damaged, dtype_named, dumps, loads
from jitbatch.record.structure import described_leaves
from jitbatch.util import compat
from jitbatch.util.errors import PlanError

AMBIGUOUS = -1
"""Stands for an id where several kinds have the same name."""


# Names


class Names:
    """The names of the value classes, shared values and kinds in tables, and the ids of these names."""

    def __init__(self, tables: Tables):
        self.tables = tables

    def of_class(self, class_id: int) -> Hashable:
        return self.tables.class_order(class_id)

    def of_shared(self, shared_id: int) -> Hashable:
        return self.tables.shared_order(shared_id)

    def of_kind(self, kind: Kind) -> Hashable:
        name = _kind_name(kind, self.tables)
        if self.kinds[name] == AMBIGUOUS:
            raise PlanError(
                f"the cell {kind.cell.name!r} cannot be saved: another differs from it only in objects that have no "
                "name which is the same in every process, such as what the rule of a custom derivative closes over"
            )
        return name

    def class_number(self, name: Any) -> int:
        return self.tables.classes.number(class_named(name))

    @cached_property
    def shared(self) -> dict[Hashable, int]:
        return {self.tables.shared_order(shared_id): shared_id for shared_id in range(len(self.tables.shared))}

    @cached_property
    def kinds(self) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {}
        for kind_id, kind in enumerate(self.tables.kinds.entries):
            name = _kind_name(kind, self.tables)
            found[name] = AMBIGUOUS if name in found else kind_id
        return found


def class_named(name: Any) -> ValueClass:
    """Returns the value class of a name. The name may come from an untrusted file and is checked."""
    match name:
        case (tuple(shape), str(dtype)):
            check_shape(shape)
            return ValueClass(shape, dtype_named(dtype))
    return damaged("the name of a class of values")


def _kind_name(kind: Kind, tables: Tables) -> Hashable:
    return kind.cell.digest, tables.binding_order(kind.binding)


def exemplar(graph: Graph) -> Any:
    """Returns a sample with the structure of a graph's sample, without its data."""
    leaves = [
        leaf() if isinstance(leaf, type) else jax.ShapeDtypeStruct(leaf[0], leaf[1], weak_type=leaf[2])
        for leaf in described_leaves(graph.structure)
    ]
    return graph.structure[0].unflatten(leaves)


# Capacities


@dataclass(frozen=True)
class Capacity:
    """The sizes of a plan: how many nodes, terms, input rows and rounds its program has room for.

    A capacity, `plan.capacity`, can be printed, compared and saved as JSON. Pass it to `f.plan(..., like=capacity)`,
    also in another process: a resumed run then has the same sizes, and so the same results bit by bit, as an
    uninterrupted one. `capacity | other` has room for the batches of both.

    >>> from jitbatch import Capacity, jitbatch
    >>> @jitbatch
    ... def area(scale, x):
    ...     return 3.14159 * scale * x * x
    >>> total = jitbatch(lambda scale, xs: sum(area(scale, x) for x in xs))
    >>> capacity = total.plan(2.0, [(1.0, 2.0, 3.0), (4.0, 5.0)]).capacity
    >>> print(capacity)
    room for 6 area, 2 sum (6 terms); 6 input rows
    >>> small = total.plan(2.0, [(1.0,)], like=Capacity.from_json(capacity.to_json()))
    >>> small.capacity == capacity
    True

    Attributes:
        exemplars: samples without data. Recording them makes the node kinds again. They do not count in comparisons.
            After loading they are stored as `Trees`, and rebuilt on first use.
        kinds, edges: the names of the node kinds, and the pairs of a kind's output and the operand that reads it.
        nodes, terms: the number of nodes of each type, and of terms of each reduction type.
        inputs: the number of input rows of each value class, by name.
        shared: the names of the shared values that are rows.
        loops: the sizes of each loop, by its types.
        items: the number of items of a ragged result; 0 for other results.
        granularity: the granularity at which the samples are recorded.
        cells: the cell name of each entry of `nodes`, for display.
    """

    exemplars: Trees | tuple[Any, ...] = field(compare=False)
    kinds: tuple[Hashable, ...]
    edges: tuple[tuple[int, int, int, int], ...]
    nodes: tuple[tuple[Origin, int], ...]
    terms: tuple[tuple[Origin, int], ...]
    inputs: tuple[tuple[Hashable, int], ...]
    shared: tuple[Hashable, ...]
    loops: tuple[tuple[tuple[Origin, ...], LoopSizes], ...]
    items: int
    granularity: str
    cells: tuple[str, ...] = field(compare=False)

    def __str__(self) -> str:
        terms = dict(self.terms)
        blocks = [
            (room, f"{room} {cell}" + (f" ({terms[origin]} terms)" if origin in terms else ""))
            for cell, (origin, room) in zip(self.cells, self.nodes, strict=True)
        ]
        parts = [", ".join(largest(blocks)) or "no nodes", f"{sum(room for _, room in self.inputs)} input rows"]
        parts += [f"a loop of {sizes.rounds} rounds, {sizes.width} wide" for _, sizes in self.loops]
        parts += [f"{self.items} items"] if self.items else []
        return "room for " + "; ".join(parts)

    @property
    def samples(self) -> tuple[Any, ...]:
        """The exemplars as samples, rebuilt from `Trees` if the capacity was loaded."""
        return self.exemplars.open() if isinstance(self.exemplars, Trees) else self.exemplars

    def __or__(self, other: "Capacity") -> "Capacity":
        """Returns the smallest capacity with room for the batches of both."""
        return _united(self, other)

    def to_json(self) -> str:
        """Returns the capacity as JSON text, for a checkpoint or a file. The text is equal in every process.

        Raises:
            PlanError: an exemplar holds an object that is not data.
        """
        return _to_json(self, None)

    @staticmethod
    def from_json(text: str | bytes) -> "Capacity":
        """Returns the capacity of a text that `to_json` made.

        Loading is safe for text from untrusted sources: it runs and imports nothing from the text.

        Args:
            text: the JSON text.

        Raises:
            PlanError: `to_json` did not make this text, the text has changed since, or a size is too large.
        """
        return _from_json(text, ())

    def __reduce__(self) -> tuple[Any, ...]:
        objects: list[Any] = []
        text = _to_json(self, objects)
        return _from_json, (text, tuple(objects))


# Capacities as text

FORMAT = "jitbatch capacity"
VERSION = 1


def _to_json(capacity: Capacity, objects: list[Any] | None) -> str:
    content = to_data(saveable(capacity, objects))
    return dumps({"format": FORMAT, "version": VERSION, "sha256": _checksum(content), "capacity": content})


def saveable(capacity: Capacity, objects: list[Any] | None) -> Capacity:
    """Returns a capacity with its exemplars as data.

    Args:
        capacity: the capacity.
        objects: a list that receives the objects that are not data; None to raise `PlanError` for them.
    """
    trees = capacity.exemplars
    if not isinstance(trees, Trees) or (trees.objects and objects is None):
        return replace(capacity, exemplars=Trees.of(capacity.samples, "a sample of the plan", objects))
    if objects is not None:
        objects += trees.objects
    return capacity


def _checksum(content: Any) -> str:
    return hashlib.sha256(dumps(content).encode()).hexdigest()


def _from_json(text: str | bytes, objects: tuple[Any, ...]) -> Capacity:
    data = loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanError("this is not the text of a capacity: `capacity.to_json()` makes one")
    if data.get("version") != VERSION:
        raise PlanError(
            f"the capacity was saved in version {str(data.get('version'))[:40]} of its format, and this release of "
            f"jitbatch reads version {VERSION}. Plan again"
        )
    if data.keys() != {"format", "version", "sha256", "capacity"} or data["sha256"] != _checksum(data["capacity"]):
        raise PlanError("the saved capacity is damaged: its checksum is that of another text. Save it again")
    capacity: Capacity = from_data(Capacity, data["capacity"], "capacity")
    check_capacity(capacity)
    return replace(capacity, exemplars=replace(capacity.exemplars, objects=objects))  # type: ignore[type-var]


def check_capacity(capacity: Capacity) -> None:
    """Raises `PlanError` if the parts of a loaded capacity do not fit together, or a size is out of range."""
    if len(capacity.cells) != len(capacity.nodes) or not capacity.exemplars.walks:  # type: ignore[union-attr]
        damaged("nodes have names, and there is a sample")
    if not all(0 <= end < len(capacity.kinds) for edge in capacity.edges for end in (edge[0], edge[2])):
        damaged("an edge between kinds that are not there")
    rooms = [
        capacity.items,
        *(room for rooms in (capacity.nodes, capacity.terms, capacity.inputs) for _, room in rooms),
    ]
    for loop, sizes in capacity.loops:
        rooms += [len(loop) * sizes.rounds, len(loop) * sizes.width, sizes.longest]
        rooms += [*sizes.pairs.values(), *sizes.pair_trips.values()]
        for name in (*sizes.pairs, *sizes.pair_trips):
            class_named(name)
    for name, _ in capacity.inputs:
        class_named(name)
    if min(rooms) < 0 or sum(rooms) > MAX_SIZE:
        raise PlanError(
            f"the saved capacity has room for more than {MAX_SIZE} rows, rounds and terms: it is damaged, or nobody "
            "saved it as it is"
        )


# Capacities of plans


def _united(left: Capacity, right: Capacity) -> Capacity:
    if left.granularity != right.granularity:
        raise PlanError(
            f"capacities of granularity {left.granularity!r} and {right.granularity!r} have no room in common: plan "
            "with one granularity"
        )
    kinds = sorted({*left.kinds, *right.kinds}, key=repr)
    position_of = {kind: position for position, kind in enumerate(kinds)}
    edges = {
        (position_of[capacity.kinds[read]], output, position_of[capacity.kinds[reader]], slot)
        for capacity in (left, right)
        for read, output, reader, slot in capacity.edges
    }
    cells = {
        origin: cell
        for capacity in (right, left)
        for cell, (origin, _) in zip(capacity.cells, capacity.nodes, strict=True)
    }
    nodes = _larger(left.nodes, right.nodes)
    loops: dict[Any, LoopSizes] = dict(left.loops)
    for loop, sizes in right.loops:
        loops[loop] = loops[loop].united(sizes) if loop in loops else sizes
    known = len(kinds) == len(left.kinds) and len(edges) == len(left.edges) and {*right.shared} <= {*left.shared}
    return Capacity(
        exemplars=left.exemplars if known and right.items <= left.items else (*left.samples, *right.samples),
        kinds=tuple(kinds),
        edges=tuple(sorted(edges)),
        nodes=nodes,
        terms=_larger(left.terms, right.terms),
        inputs=tuple(sorted(_larger(left.inputs, right.inputs))),
        shared=tuple(sorted({*left.shared, *right.shared}, key=repr)),
        loops=tuple(loops.items()),
        items=max(left.items, right.items),
        granularity=left.granularity,
        cells=tuple(cells[origin] for origin, _ in nodes),
    )


def _larger(left: tuple[tuple[Any, int], ...], right: tuple[tuple[Any, int], ...]) -> tuple[tuple[Any, int], ...]:
    """Returns, for each name, the larger of two sizes."""
    rooms = dict(left)
    for name, room in right:
        rooms[name] = max(rooms.get(name, 0), room)
    return tuple(rooms.items())


def capacity_of(sizes: Sizes, cells: Sequence[str], items: int, tables: Tables) -> Capacity:
    names = Names(tables)
    kind_names = {kind_id: names.of_kind(tables.kinds[kind_id]) for kind_id in sizes.profile.kinds}
    ordered = sorted(kind_names, key=lambda kind_id: repr(kind_names[kind_id]))
    position_of = {kind_id: position for position, kind_id in enumerate(ordered)}
    edges = [tables.edges[edge_id] for edge_id in sizes.profile.edges]

    def by_class(rooms: Mapping[int, int]) -> dict[Any, int]:
        return {names.of_class(class_id): room for class_id, room in rooms.items()}

    return Capacity(
        exemplars=tuple(map(exemplar, sizes.exemplars)),
        kinds=tuple(kind_names[kind_id] for kind_id in ordered),
        edges=tuple(sorted((position_of[e.read], e.output, position_of[e.reader], e.slot) for e in edges)),
        nodes=tuple(sizes.nodes.items()),
        terms=tuple(sizes.terms.items()),
        inputs=tuple(sorted((name, room) for name, room in by_class(sizes.inputs).items() if room)),
        shared=tuple(sorted(map(names.of_shared, sizes.shared), key=repr)),
        loops=tuple(
            (tuple(sorted(loop)), LoopSizes(s.rounds, s.width, by_class(s.pairs), by_class(s.pair_trips), s.longest))
            for loop, s in sizes.loops.items()
        ),
        items=items,
        granularity=tables.granularity,
        cells=tuple(cells),
    )


def sizes_of(capacity: Capacity, tables: Tables, record: Callable[[Any], Graph]) -> Sizes:
    """Returns the sizes of a capacity, with the ids of a function's tables.

    Args:
        capacity: the capacity.
        tables: the tables of the function.
        record: returns the graph of an exemplar; it records new structures.
    """
    needed = sum(room * class_named(name).nbytes for name, room in capacity.inputs)
    check_memory(needed, "its input rows alone")
    graphs = tuple(map(record, capacity.samples))
    names = Names(tables)
    kinds = [find_name(names.kinds, name) for name in capacity.kinds]
    edges = [
        tables.edges.number(Edge(kinds[read], output, kinds[reader], slot))
        for read, output, reader, slot in capacity.edges
    ]
    recorded = Profile().union(graphs)
    if not (set(kinds) <= set(recorded.kinds) and set(edges) <= set(recorded.edges)):
        raise PlanError(f"what was saved does not fit: {CHANGED}")

    def by_class(rooms: Mapping[Any, int]) -> dict[int, int]:
        return {names.class_number(name): room for name, room in rooms.items()}

    return Sizes(
        profile=Profile(tuple(sorted(kinds)), tuple(sorted(edges))).union(graphs),
        exemplars=graphs,
        nodes=dict(capacity.nodes),
        terms=dict(capacity.terms),
        inputs=by_class(dict(capacity.inputs)),
        shared=frozenset(find_name(names.shared, name) for name in capacity.shared),
        loops={
            frozenset(loop): LoopSizes(s.rounds, s.width, by_class(s.pairs), by_class(s.pair_trips), s.longest)
            for loop, s in capacity.loops
        },
    )


def check_arenas(arenas: Sequence[ArenaShape], tables: Tables) -> None:
    """Raises `PlanError` if the arenas of a saved size exceed the memory of the device."""
    check_memory(
        sum(arena.capacity * tables.classes[arena.value_class].nbytes for arena in arenas), "what its nodes make"
    )


def check_memory(needed: int, what: str) -> None:
    """Raises `PlanError` if saved sizes need more bytes than the device has. `what` names the part, for the message."""
    limit = compat.device_memory()
    if needed > limit:
        raise PlanError(
            f"what was saved needs {needed} bytes of memory for {what}, and there are {limit}. Plan smaller minibatches"
        )


def find_name(known: Mapping[Hashable, int], name: Hashable) -> int:
    if known.get(name, AMBIGUOUS) == AMBIGUOUS:
        raise PlanError(f"what was saved does not fit: {CHANGED}")
    return known[name]
