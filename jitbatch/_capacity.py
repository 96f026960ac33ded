"""What a plan has room for, apart from any process.

Inside a process, kinds of node, value classes and shared values are numbers in the tables of a function. Here they have
names that are the same in every process: a kind is the digest of its cell and the names of what it is bound to. A few
samples without their data, the *exemplars*, are saved along: recording them makes the kinds again. A name that does not
appear then says that the function has changed.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from jitbatch import _compat
from jitbatch._describe import largest
from jitbatch._errors import PlanError
from jitbatch._graph import Graph
from jitbatch._sizes import LoopSizes, Sizes
from jitbatch._structure import described_leaves
from jitbatch._tables import Edge, Kind, Tables, ValueClass
from jitbatch._types import Origin, Profile

CHANGED = "the function, its shared arguments or the release of JAX differ from those it was saved with. Plan again"

AMBIGUOUS = -1
"""In place of a number: several things have this name."""


# Names


class Names:
    """The names of what is in tables, and what has these names."""

    def __init__(self, tables: Tables):
        self.tables = tables

    def of_class(self, number: int) -> Hashable:
        return self.tables.class_order(number)

    def of_shared(self, number: int) -> Hashable:
        return self.tables.shared_order(number)

    def of_kind(self, kind: Kind) -> Hashable:
        name = _kind_name(kind, self.tables)
        if self.kinds[name] == AMBIGUOUS:
            raise PlanError(
                f"the cell {kind.cell.name!r} cannot be saved: another differs from it only in objects that have no "
                "name which is the same in every process, such as what the rule of a custom derivative closes over"
            )
        return name

    def class_number(self, name: Any) -> int:
        shape, dtype = name
        return self.tables.classes.number(ValueClass(shape, _compat.dtype_named(dtype)))

    @cached_property
    def shared(self) -> dict[Hashable, int]:
        return {self.tables.shared_order(number): number for number in range(len(self.tables.shared))}

    @cached_property
    def kinds(self) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {}
        for number, kind in enumerate(self.tables.kinds.entries):
            name = _kind_name(kind, self.tables)
            found[name] = AMBIGUOUS if name in found else number
        return found


def _kind_name(kind: Kind, tables: Tables) -> Hashable:
    return kind.cell.digest, tables.binding_order(kind.binding)


def exemplar(graph: Graph) -> Any:
    """A sample with the structure of a graph's, without its data."""
    leaves = [
        one() if isinstance(one, type) else jax.ShapeDtypeStruct(one[0], one[1], weak_type=one[2])
        for one in described_leaves(graph.structure)
    ]
    return graph.structure[0].unflatten(leaves)


# Capacities


@dataclass(frozen=True)
class Capacity:
    """What a program has room for, and of what: the sizes of a plan without the plan.

    `plan.capacity` can be printed, compared, pickled into a checkpoint, and given back as `f.plan(..., like=capacity)`,
    also in another process: a run that is resumed has the sizes, and so the bits, of one that was not interrupted.

    >>> import pickle
    >>> from jitbatch import jitbatch
    >>> @jitbatch
    ... def area(scale, x):
    ...     return 3.14159 * scale * x * x
    >>> total = jitbatch(lambda scale, xs: sum(area(scale, x) for x in xs))
    >>> capacity = total.plan(2.0, [(1.0, 2.0, 3.0), (4.0, 5.0)]).capacity
    >>> print(capacity)
    room for 6 area, 2 sum (6 terms); 6 input rows
    >>> small = total.plan(2.0, [(1.0,)], like=pickle.loads(pickle.dumps(capacity)))
    >>> small.capacity == capacity
    True

    Attributes:
        exemplars: samples without data, from which the kinds of node can be recorded again. Others would do as well.
        kinds, edges: the names of these kinds, and which reads which.
        nodes, terms, inputs, shared, loops, items: how many there is room for, by names.
        granularity: at which they are recorded.
        cells: for people, what the nodes are called.
    """

    exemplars: tuple[Any, ...] = field(compare=False)
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


def capacity_of(sizes: Sizes, cells: Sequence[str], items: int, tables: Tables) -> Capacity:
    names = Names(tables)
    kind_names = {number: names.of_kind(tables.kinds[number]) for number in sizes.profile.kinds}
    ordered = sorted(kind_names, key=lambda number: repr(kind_names[number]))
    place = {number: position for position, number in enumerate(ordered)}
    edges = [tables.edges[number] for number in sizes.profile.edges]

    def by_class(rooms: Mapping[int, int]) -> dict[Any, int]:
        return {names.of_class(number): room for number, room in rooms.items()}

    return Capacity(
        exemplars=tuple(map(exemplar, sizes.exemplars)),
        kinds=tuple(kind_names[number] for number in ordered),
        edges=tuple(sorted((place[e.read], e.output, place[e.reader], e.slot) for e in edges)),
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
    """Sizes in terms of the tables of a function, whose exemplars `record` records if they are new."""
    graphs = tuple(map(record, capacity.exemplars))
    names = Names(tables)
    kinds = [find_name(names.kinds, name) for name in capacity.kinds]
    edges = [
        tables.edges.number(Edge(kinds[read], output, kinds[reader], slot))
        for read, output, reader, slot in capacity.edges
    ]

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


def find_name(known: Mapping[Hashable, int], name: Hashable) -> int:
    if known.get(name, AMBIGUOUS) == AMBIGUOUS:
        raise PlanError(f"what was saved does not fit: {CHANGED}")
    return known[name]
