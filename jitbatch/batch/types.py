"""The types of a batch: nodes of one type can run together. They are decided for all samples at once.

A type is a kind of node, with three exceptions. If some calls of a cell pass a shared value (a learned initial state)
and others a value of the sample, all of them pass a row. If kinds with equal bodies have different outputs, their type
has all outputs. If a cell runs in a loop, its parts before and after the loop are types of their own (see
`batch/split_cell`). Each graph is then expressed in these types (see `batch/retype`).
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jitbatch.batch.activity import Flows, find_flows
from jitbatch.batch.components import find_phases
from jitbatch.batch.split_cell import Made, Operand, Slot, split_cell
from jitbatch.core.choice import make_type_table
from jitbatch.core.reference.type_table import PART_OUTPUT, ROW_OPERAND, SHARED_VALUE, TypeTable
from jitbatch.ir.cell import Cell, widest
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import ROW, Edge, Kind, Tables


class Part(NamedTuple):
    """One of the typed nodes that replace a node: its kind, a name, and the source of each row operand."""

    kind: int
    name: str
    operands: tuple[Operand | Made, ...]


class Recipe(NamedTuple):
    """The parts that replace a node of a kind, and for each output of the kind its part and the output of that part."""

    parts: tuple[Part, ...]
    outputs: tuple[Made, ...]


class Origin(NamedTuple):
    """A stable name of a type, by the cell that it is a part of. It does not change when more kinds become known."""

    body: str
    part: str
    binding: tuple[Any, ...]


class Profile(NamedTuple):
    """The key of a decision about types: the kinds, the edges, and the shared values that the samples need as rows.

    All are ids in the tables, ascending. The shared values are part of the key because the exemplars of a decision must
    show them.
    """

    kinds: tuple[int, ...] = ()
    edges: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

    def union(self, graphs: Sequence[Graph]) -> "Profile":
        """This profile, extended by the kinds, edges and shared rows of some graphs."""
        kinds = np.concatenate([graph.kinds_present for graph in graphs])
        edges = np.concatenate([graph.edges_present for graph in graphs])
        shared = np.concatenate([graph.shared_rows for graph in graphs])
        return Profile(
            tuple(np.union1d(kinds, np.array(self.kinds, np.int64)).tolist()),
            tuple(np.union1d(edges, np.array(self.edges, np.int64)).tolist()),
            tuple(np.union1d(shared, np.array(self.shared, np.int64)).tolist()),
        )


@dataclass(frozen=True, eq=False)
class Types:
    """The types of a batch in canonical order.

    Attributes:
        profile: the profile that these types were decided for.
        kinds: the kind of each type.
        of_kind: int [kinds in the tables]; the type of each of these kinds, -1 for others.
        made: int [types]; the number of outputs of a node of each type.
        reads, writes: for each type, the value classes of its row operands, and of its outputs.
        origins: the stable name of each type.
        phases: the types of each phase, and whether the phase is a loop.
        edges: `(read, reader)` pairs of types.
        connections: the edges between types, with outputs and row operands.
        from_shared: the types and row operands that can read a shared value.
        exemplars: at least one graph; together, they contain everything in the profile.
        is_split: whether cells in loops were split.
        recipes: the recipe of each kind in the profile.
        has_derivatives: whether batches may be differentiated. Those of a server are not.
    """

    profile: Profile
    kinds: tuple[Kind, ...]
    of_kind: np.ndarray
    made: np.ndarray
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    origins: tuple[Origin, ...]
    phases: tuple[tuple[tuple[int, ...], bool], ...]
    edges: frozenset[tuple[int, int]]
    connections: frozenset[Edge[int]]
    from_shared: frozenset[tuple[int, int]]
    exemplars: tuple[Graph, ...]
    is_split: bool
    recipes: dict[int, Recipe]
    has_derivatives: bool = True

    @cached_property
    def table(self) -> TypeTable:
        """The types in the form of the core."""
        tables = self.exemplars[0].tables

        def source(operand: Operand | Made, binding: tuple[int, ...]) -> tuple[int, int, int]:
            if isinstance(operand, Made):
                return PART_OUTPUT, operand.part, operand.output
            bound = binding[operand.slot]
            return (ROW_OPERAND, binding[: operand.slot].count(ROW), 0) if bound == ROW else (SHARED_VALUE, bound, 0)

        recipes = {}
        for kind_id, recipe in self.recipes.items():
            binding = tables.kinds[kind_id].binding
            parts = [
                (int(self.of_kind[part.kind]), [source(operand, binding) for operand in part.operands])
                for part in recipe.parts
            ]
            recipes[kind_id] = parts, [(made.part, made.output) for made in recipe.outputs]
        types = [
            (made, kind.rows, kind.is_variadic, kind.cell.may_merge)
            for made, kind in zip(self.made.tolist(), self.kinds, strict=True)
        ]
        return make_type_table(types, [members for members, is_loop in self.phases if is_loop], recipes)

    @cached_property
    def flows(self) -> Flows:
        """The row operands of each type that a derivative can pass through, if inputs are constants."""
        return self.flows_from(())

    def flows_from(self, classes: Collection[int]) -> Flows:
        """The row operands of each type that a derivative can pass through, if inputs of some value classes have one.

        An operand of such a class is taken for one that reads an input.
        """
        if not self.has_derivatives:
            return tuple((False,) * kind.rows for kind in self.kinds)
        reads = {
            (type_id, row)
            for type_id, read in enumerate(self.reads)
            for row, class_id in enumerate(read)
            if class_id in classes
        }
        return find_flows(self.kinds, self.connections, self.from_shared | reads, self.exemplars[0].tables)

    def in_order(self, order: Sequence[Origin]) -> "Types":
        """The same types, with phases and the types inside loops in a given order.

        A program then keeps its order, and is not compiled again, when a batch has other edges inside a loop. Returns
        these types unchanged if `order` lacks one of them, or if a phase would read a later one.
        """
        at = {origin: position for position, origin in enumerate(order)}
        if not at.keys() >= set(self.origins):
            return self
        positions = [at[origin] for origin in self.origins]
        phases = [(tuple(sorted(members, key=positions.__getitem__)), is_loop) for members, is_loop in self.phases]
        phases.sort(key=lambda phase: positions[phase[0][0]])
        place = {t: phase for phase, (members, _) in enumerate(phases) for t in members}
        fits = all(place[read] <= place[reader] for read, reader in self.edges)
        return replace(self, phases=tuple(phases)) if fits else self


def types_of(
    profile: Profile, graphs: Sequence[Graph], split: bool, order: tuple[Origin, ...] = (), derives: bool = True
) -> Types:
    """The types for the profile of some graphs, cached.

    Args:
        profile: the profile, which covers all graphs.
        graphs: at least one graph.
        split: whether to split cells that run in loops.
        order: an order of types to keep, if possible (see `Types.in_order`).
        derives: whether they have derivatives.
    """

    def decide() -> Types:
        if not derives:
            return replace(types_of(profile, graphs, split, order), has_derivatives=False)
        return types_of(profile, graphs, split).in_order(order) if order else find_types(profile, graphs, split)

    return graphs[0].tables.decisions.get_or_make((profile, split, order, derives), decide)


def known_types(profile: Profile, tables: Tables, split: bool, order: tuple[Origin, ...]) -> Types | None:
    """The cached result of `types_of`; None if there is none."""
    return tables.decisions.get((profile, split, order, True))


def find_types(profile: Profile, graphs: Sequence[Graph], split: bool) -> Types:
    """Decide the types for the profile of some graphs. The arguments are those of `types_of`."""
    tables = graphs[0].tables
    united, outputs = unite([tables.kinds[kind_id] for kind_id in profile.kinds])
    kind_of = dict(zip(profile.kinds, united, strict=True))
    outputs_of = dict(zip(profile.kinds, outputs, strict=True))
    edges = sorted(
        {
            Edge(kind_of[edge.read], outputs_of[edge.read][edge.output], kind_of[edge.reader], edge.slot)
            for edge in map(tables.edges.__getitem__, profile.edges)
        },
        key=lambda edge: (_order(edge.read, tables), edge.output, _order(edge.reader, tables), edge.slot),
    )
    whole = sorted(set(united), key=lambda kind: _order(kind, tables))
    loops = _loops(whole, edges) if split else {}
    recipes = {kind: _recipe(kind, loops.get(kind), tables) for kind in whole}

    origins: dict[int, Origin] = {}
    for kind, recipe in recipes.items():
        for part in recipe.parts:
            origin = Origin(kind.cell.body_digest, part.name, tables.binding_order(kind.binding))
            origins.setdefault(part.kind, origin)
    kind_ids = sorted(origins, key=lambda kind_id: _order(tables.kinds[kind_id], tables))
    place = {kind_id: t for t, kind_id in enumerate(kind_ids)}
    between_types = _edges_between_types(recipes, edges, place)
    pairs = {(edge.read, edge.reader) for edge in between_types}
    kinds = tuple(tables.kinds[kind_id] for kind_id in kind_ids)
    of_kind = np.full(len(tables.kinds), -1)
    of_kind[kind_ids] = np.arange(len(kind_ids))
    return Types(
        profile=profile,
        kinds=kinds,
        of_kind=of_kind,
        made=np.array([len(tables.kind_classes[kind_id]) for kind_id in kind_ids], np.int64),
        reads=tuple(_classes_read(tables.kinds[kind_id], tables) for kind_id in kind_ids),
        writes=tuple(tables.kind_classes[kind_id] for kind_id in kind_ids),
        origins=tuple(origins[kind_id] for kind_id in kind_ids),
        phases=tuple(find_phases(len(kind_ids), pairs)),
        edges=frozenset(pairs),
        connections=frozenset(between_types),
        from_shared=frozenset(_from_shared(profile, kind_of, recipes, place, tables)),
        exemplars=_exemplars(graphs),
        is_split=split,
        recipes={
            kind_id: Recipe(recipes[kind].parts, tuple(recipes[kind].outputs[o] for o in outputs_of[kind_id]))
            for kind_id, kind in kind_of.items()
        },
    )


def _classes_read(kind: Kind, tables: Tables) -> tuple[int, ...]:
    rows = zip(kind.cell.in_avals, kind.binding, strict=True)
    return tuple(tables.class_of(aval) for aval, bound in rows if bound == ROW)


def _exemplars(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """Some of the graphs that together have all kinds, edges and shared rows of all graphs."""
    known: tuple[set[int], ...] = (set(), set(), set())
    chosen = []
    for graph in graphs:
        present = (graph.kinds_present, graph.edges_present, graph.shared_rows)
        if not chosen or not all(have.issuperset(new) for have, new in zip(known, present, strict=True)):
            chosen.append(graph)
            for have, new in zip(known, present, strict=True):
                have.update(new)
    return tuple(chosen)


def _order(kind: Kind, tables: Tables) -> tuple[Any, ...]:
    return kind.cell.digest, tables.binding_order(kind.binding)


def unite(kinds: Sequence[Kind]) -> tuple[list[Kind], list[tuple[int, ...]]]:
    """Unite kinds with equal bodies: an operand is a row if it is a row in one of them, and all have all outputs.

    Returns:
        The new kind of each kind.
        For each kind, the index of each of its outputs among the outputs of the new kind.
    """
    bodies: dict[Hashable, list[Cell]] = {}
    is_row: dict[Hashable, list[bool]] = {}
    for kind in kinds:
        bodies.setdefault(kind.cell.body, []).append(kind.cell)
        rows = is_row.setdefault(kind.cell.body, [False] * len(kind.binding))
        for slot, bound in enumerate(kind.binding):
            rows[slot] = rows[slot] or bound == ROW
    united, outputs = [], []
    for kind in kinds:
        cell = widest(bodies[kind.cell.body])
        binding = (ROW if row else bound for bound, row in zip(kind.binding, is_row[kind.cell.body], strict=True))
        united.append(Kind(cell, tuple(binding)))
        outputs.append(tuple(cell.output_numbers.index(out) for out in kind.cell.output_numbers))
    return united, outputs


class InLoop(NamedTuple):
    """What a kind exchanges with the kinds of its loop: the slots that read them, and the outputs that they read."""

    late_slots: set[int]
    inner_outputs: set[int]


def _loops(kinds: Sequence[Kind], edges: Sequence[Edge[Kind]]) -> dict[Kind, InLoop]:
    """For each kind that runs in a loop, what it exchanges with the kinds of that loop."""
    place = {kind: position for position, kind in enumerate(kinds)}
    ends = [(place[edge.read], place[edge.reader]) for edge in edges]
    phase_of = {}
    found: dict[Kind, InLoop] = {}
    for phase, (members, is_loop) in enumerate(find_phases(len(kinds), set(ends))):
        for member in members:
            phase_of[member] = phase
            if is_loop:
                found[kinds[member]] = InLoop(set(), set())
    for edge, (read, reader) in zip(edges, ends, strict=True):
        if phase_of[read] == phase_of[reader]:
            found[edge.reader].late_slots.add(edge.slot)
            found[edge.read].inner_outputs.add(edge.output)
    return found


def _recipe(kind: Kind, loop: InLoop | None, tables: Tables) -> Recipe:
    """The recipe of a kind. `loop` is None for a kind outside of all loops."""
    outputs = range(len(kind.cell.out_avals))
    split = None
    if loop and not kind.is_variadic:
        slots = tuple(
            Slot.SHARED if bound != ROW else Slot.LATE if slot in loop.late_slots else Slot.EARLY
            for slot, bound in enumerate(kind.binding)
        )
        split = split_cell(kind.cell, slots, tuple(output in loop.inner_outputs for output in outputs))
    if split is None:
        rows = tuple(Operand(slot) for slot, bound in enumerate(kind.binding) if bound == ROW)
        whole = Part(tables.kind(kind.cell, kind.binding), "core", rows)
        return Recipe((whole,), tuple(Made(0, output) for output in outputs))
    hoists = len(split.hoists)
    names = (*(f"hoist{hoist}" for hoist in range(hoists)), "core", "sink")
    parts = []
    for name, part in zip(names, split.parts, strict=False):
        binding = tuple(kind.binding[o.slot] if isinstance(o, Operand) else ROW for o in part.operands)
        rows = tuple(operand for operand, bound in zip(part.operands, binding, strict=True) if bound == ROW)
        parts.append(Part(tables.kind(part.cell, binding), name, rows))
    return Recipe(tuple(parts), split.outputs)


def _edges_between_types(
    recipes: dict[Kind, Recipe], edges: Sequence[Edge[Kind]], place: dict[int, int]
) -> set[Edge[int]]:
    """The edges between types: inside of recipes, and along the edges between kinds."""
    found: set[Edge[int]] = set()
    for recipe in recipes.values():
        for part in recipe.parts:
            for row, operand in enumerate(part.operands):
                if isinstance(operand, Made):
                    read = recipe.parts[operand.part].kind
                    found.add(Edge(place[read], operand.output, place[part.kind], row))
    for edge in edges:
        made = recipes[edge.read].outputs[edge.output]
        read = recipes[edge.read].parts[made.part].kind
        for part in recipes[edge.reader].parts:
            for row, operand in enumerate(part.operands):
                if operand == Operand(edge.slot):
                    found.add(Edge(place[read], made.output, place[part.kind], row))
    return found


def _from_shared(
    profile: Profile, kind_of: dict[int, Kind], recipes: dict[Kind, Recipe], place: dict[int, int], tables: Tables
) -> set[tuple[int, int]]:
    """The types and row operands that can read a shared value.

    These are the operands that are bound to a shared value in a kind of the profile. If the samples need shared values
    as rows, they are also the terms of reductions.
    """
    found: set[tuple[int, int]] = set()
    for kind_id, kind in kind_of.items():
        slots = {slot for slot, bound in enumerate(tables.kinds[kind_id].binding) if bound != ROW}
        for part in recipes[kind].parts:
            for row, operand in enumerate(part.operands):
                is_shared = isinstance(operand, Operand) and operand.slot in slots
                if is_shared or (kind.is_variadic and profile.shared):
                    found.add((place[part.kind], row))
    return found
