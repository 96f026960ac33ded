"""Graphs in terms of the types of a batch: pieces, which are joined to a batch.

This is done once for each structure and decision about types, and for all new structures of a batch together:
everything here works on whole arrays.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.batch.fingerprints import Operands, Shapes, find_shapes, place_of
from jitbatch.batch.join import Piece
from jitbatch.batch.split_cell import Made, Operand
from jitbatch.batch.types import Types
from jitbatch.ir.graph import Graph
from jitbatch.ir.ranks import by_stage, find_layers, find_needs, longest_paths
from jitbatch.ir.tables import ROW
from jitbatch.util.csr import cut, offsets, ranges

REMEMBERED = 4
"""How many decisions a graph remembers what it looks like under."""


def typed(graphs: Sequence[Graph], types: Types) -> list[Piece]:
    """Graphs in terms of the types of a batch."""
    pieces: list[Any] = [graph.typed.get(types) for graph in graphs]
    new = {id(graph): graph for graph, piece in zip(graphs, pieces, strict=True) if piece is None}
    if new:
        made = dict(zip(new, _rewrite(list(new.values()), types), strict=True))
        for key, graph in new.items():
            while len(graph.typed) >= REMEMBERED:
                graph.typed.pop(next(iter(graph.typed)), None)
            graph.typed[types] = made[key]
        pieces = [made[id(graph)] if piece is None else piece for graph, piece in zip(graphs, pieces, strict=True)]
    return pieces


def _rewrite(graphs: Sequence[Graph], types: Types) -> list[Piece]:
    """A node becomes the parts that the recipe of its kind has. Values are numbered over all graphs: `old` ones of the
    graphs as they are, and those of the pieces."""
    tables = graphs[0].tables
    old_start = offsets([len(graph.value_class) for graph in graphs])

    def over_all(values: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(values) + np.repeat(old_start[:-1], [len(one) for one in values])

    kind = np.concatenate([graph.kind for graph in graphs])
    graph_of = np.repeat(np.arange(len(graphs)), [graph.node_count for graph in graphs])
    counts = np.concatenate([np.diff(graph.operand_start) for graph in graphs])
    old_operand_start = offsets(counts)
    old_operands = over_all([graph.operands for graph in graphs])
    old_first = over_all([graph.node_values[:-1] for graph in graphs])
    by_kind = np.argsort(kind, kind="stable")
    present, of_kind = np.unique(kind, return_counts=True)
    members = dict(zip(present.tolist(), np.split(by_kind, np.cumsum(of_kind)), strict=False))
    recipes = {number: types.recipes[number] for number in members}

    # The parts of all nodes.
    part_count = np.zeros(len(kind), np.int64)
    for number, recipe in recipes.items():
        part_count[members[number]] = len(recipe.parts)
    first_part = offsets(part_count)
    total = int(first_part[-1])
    part_type, arity, place = (np.zeros(total, np.int64) for _ in range(3))
    for number, recipe in recipes.items():
        for p, part in enumerate(recipe.parts):
            here = first_part[members[number]] + p
            part_type[here], place[here] = types.of_kind[part.kind], p
            is_variadic = tables.kinds[part.kind].is_variadic
            arity[here] = counts[members[number]] if is_variadic else len(part.operands)
    owner = np.repeat(graph_of, part_count)

    # Of each graph the shared values that are rows.
    number_of_shared = len(tables.shared)
    shared = [graph.shared_rows + number_of_shared * i for i, graph in enumerate(graphs)]
    for number, recipe in recipes.items():
        binding = tables.kinds[number].binding
        read = {binding[o.slot] for part in recipe.parts for o in part.operands if isinstance(o, Operand)} - {ROW}
        if read:
            here = np.unique(graph_of[members[number]]) * number_of_shared
            shared += [here + one for one in read]
    shared_codes = np.unique(np.concatenate(shared))
    shared_graph, shared_number = np.divmod(shared_codes, max(number_of_shared, 1))
    shared_of = np.bincount(shared_graph, minlength=len(graphs))

    # Values.
    inputs_of = np.array([len(graph.inputs) for graph in graphs])
    given_of = inputs_of + shared_of
    made = types.made[part_type]
    first_value = np.cumsum(made) - made + np.cumsum(given_of)[owner]
    start = offsets(given_of + np.bincount(owner, weights=made, minlength=len(graphs)).astype(np.int64))
    shared_value = (start[:-1] + inputs_of)[shared_graph] + ranges(np.zeros(len(graphs), np.int64), shared_of)

    def value_of_shared(graph: np.ndarray, number: Any) -> np.ndarray:
        return shared_value[np.searchsorted(shared_codes, graph * number_of_shared + number)]

    value = np.full(old_start[-1], -1, np.int64)
    value[ranges(old_start[:-1], inputs_of)] = ranges(start[:-1], inputs_of)
    rows_of = np.array([len(graph.shared_rows) for graph in graphs])
    value[ranges(old_start[:-1] + inputs_of, rows_of)] = value_of_shared(
        np.repeat(np.arange(len(graphs)), rows_of), np.concatenate([graph.shared_rows for graph in graphs])
    )
    for number, recipe in recipes.items():
        for output, by in enumerate(recipe.outputs):
            value[old_first[members[number]] + output] = first_value[first_part[members[number]] + by.part] + by.output

    # What is read.
    operand_start = offsets(arity)
    operands = np.zeros(operand_start[-1], np.int64)
    for number, recipe in recipes.items():
        nodes, binding = members[number], tables.kinds[number].binding
        column = np.cumsum([bound == ROW for bound in binding]) - 1
        for p, part in enumerate(recipe.parts):
            here = operand_start[first_part[nodes] + p]
            if tables.kinds[part.kind].is_variadic:
                terms = ranges(old_operand_start[nodes], counts[nodes])
                operands[ranges(here, counts[nodes])] = value[old_operands[terms]]
                continue
            for position, operand in enumerate(part.operands):
                if isinstance(operand, Made):
                    read_value = first_value[first_part[nodes] + operand.part] + operand.output
                elif binding[operand.slot] == ROW:
                    read_value = value[old_operands[old_operand_start[nodes] + column[operand.slot]]]
                else:
                    read_value = value_of_shared(graph_of[nodes], binding[operand.slot])
                operands[here + position] = read_value

    # What depends on what.
    producer = np.full(start[-1], -1, np.int64)
    producer[ranges(first_value, made)] = np.repeat(np.arange(total), made)
    made_by = producer[operands]
    is_inner = made_by >= 0
    reader, read_node = np.repeat(np.arange(total), arity)[is_inner], made_by[is_inner]
    stage = (
        np.repeat(np.concatenate([graph.level for graph in graphs]), part_count) * (place.max(initial=0) + 1) + place
    )
    stages = by_stage(stage, reader, read_node)
    level = longest_paths(total, stages)
    is_sum = np.array([kind.is_variadic for kind in types.kinds], bool)[part_type]
    kept = ~(is_sum & (arity == 1))
    layer, needs, layers = _layers(types, part_type, stage, reader, read_node, owner, kept, len(graphs))

    given = np.full(start[-1], -1)
    given[ranges(start[:-1], inputs_of)] = np.arange(inputs_of.sum())
    constant = np.full(start[-1], -1)
    constant[shared_value] = shared_number
    column = np.arange(len(operands)) - np.repeat(operand_start[:-1], arity)
    place_of_operand = place_of(np.repeat(part_type, arity), column)
    read = Operands(place_of_operand, made_by, operands - first_value[made_by], given[operands], constant[operands])
    shapes = find_shapes(part_type, arity, read, int(inputs_of.sum()), stages)
    outputs = value[over_all([graph.outputs for graph in graphs])]
    parts = Parts(
        owner, part_type, level, layer, arity, first_value, shapes, operands, place_of_operand, outputs, start
    )
    parts = _without(parts, ~kept, types, given_of)

    # Apart again.
    owner, start = parts.owner, parts.start
    parts_of = np.bincount(owner, minlength=len(graphs))
    operands_of = np.bincount(owner, weights=parts.arity, minlength=len(graphs)).astype(np.int64)
    outputs_of = np.array([len(graph.outputs) for graph in graphs])
    first_input = np.cumsum(inputs_of) - inputs_of
    digest, first, end, position = parts.shapes
    base = np.where(end > first, first_input[owner], first)
    columns = np.stack(
        [
            parts.type, parts.level, parts.layer, parts.arity, parts.first_value - start[owner],
            digest, first - base, end - base,
        ]
    )  # fmt: skip
    sizes = np.stack([parts_of, np.diff(start), operands_of, inputs_of, shared_of], axis=1)
    apart = zip(
        cut(columns, parts_of),
        cut(np.stack([parts.operands - np.repeat(start[:-1], operands_of), parts.place]), operands_of),
        cut(shared_number, shared_of),
        cut(parts.outputs - np.repeat(start[:-1], outputs_of), outputs_of),
        cut(position - np.repeat(first_input, inputs_of), inputs_of),
        strict=True,
    )
    return [
        Piece(*arrays, graph.input_rows, own_needs, own_layers, size.copy())
        for graph, arrays, own_needs, own_layers, size in zip(graphs, apart, needs, layers, sizes, strict=True)
    ]


class Parts(NamedTuple):
    """The parts of some graphs; values are numbered over all of them.

    Attributes:
        owner, type, level, layer, arity, first_value: int [parts]; `owner` is the graph.
        shapes: those of the parts.
        operands, place: int; see `Piece`.
        outputs: int; the values that are results, of all graphs.
        start: int [graphs + 1]; the first value of each graph.
    """

    owner: np.ndarray
    type: np.ndarray
    level: np.ndarray
    layer: np.ndarray
    arity: np.ndarray
    first_value: np.ndarray
    shapes: Shapes
    operands: np.ndarray
    place: np.ndarray
    outputs: np.ndarray
    start: np.ndarray


def _without(parts: Parts, sums_of_one: np.ndarray, types: Types, given_of: np.ndarray) -> Parts:
    """The same without sums of one term, which are that term. Levels and layers stay: what is at the same height of two
    trees is in the same layer, whether a node has one child or several.

    Args:
        sums_of_one: bool [parts]; which parts these are.
        given_of: int [graphs]; how many values each graph has that are not made by parts.
    """
    kept = ~sums_of_one
    if kept.all():
        return parts
    stands_for = np.arange(parts.start[-1])
    stands_for[parts.first_value[~kept]] = parts.operands[(np.cumsum(parts.arity) - parts.arity)[~kept]]
    while np.any(stands_for[stands_for] != stands_for):
        stands_for = stands_for[stands_for]
    made = types.made[parts.type] * kept
    first_value = np.cumsum(made) - made + np.cumsum(given_of)[parts.owner]
    start = offsets(given_of + np.bincount(parts.owner, weights=made, minlength=len(given_of)).astype(np.int64))
    number = np.full(parts.start[-1], -1)
    number[ranges(parts.start[:-1], given_of)] = ranges(start[:-1], given_of)
    number[ranges(parts.first_value, made)] = ranges(first_value, made)
    number = number[stands_for]
    read_by_kept = np.repeat(kept, parts.arity)
    digest, first, end, position = parts.shapes
    return Parts(
        owner=parts.owner[kept],
        type=parts.type[kept],
        level=parts.level[kept],
        layer=parts.layer[kept],
        arity=parts.arity[kept],
        first_value=first_value[kept],
        shapes=Shapes(digest[kept], first[kept], end[kept], position),
        operands=number[parts.operands[read_by_kept]],
        place=parts.place[read_by_kept],
        outputs=number[parts.outputs],
        start=start,
    )


def _layers(
    types: Types, kind: np.ndarray, stage: np.ndarray, reader: np.ndarray, read: np.ndarray, owner: np.ndarray,
    kept: np.ndarray, graphs: int,
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """The layer of each node among the nodes of its loop; for each graph which layers need which, and how many layers
    each type has: of all nodes, and of those that are kept alone."""
    phase = np.full(len(types.kinds), -1)
    place = np.zeros(len(types.kinds), np.int64)
    for number, (members, is_loop) in enumerate(types.phases):
        if is_loop:
            phase[list(members)], place[list(members)] = number, np.arange(len(members))
    inside = (phase[kind[reader]] == phase[kind[read]]) & (phase[kind[read]] >= 0)
    reader, read = reader[inside], read[inside]
    layer = find_layers(place[kind], stage, reader, read)
    of_kept = layer if kept.all() else find_layers(place[kind], stage, reader, read, kept)
    many = len(types.kinds)
    own_kind = owner * many + kind
    layers = np.zeros((2, graphs * many), np.int64)
    np.maximum.at(layers[0], own_kind, layer + 1)
    np.maximum.at(layers[1], own_kind[kept], of_kept[kept] + 1)
    layers = layers.reshape(2, graphs, many).swapaxes(0, 1)
    needs = find_needs(own_kind, layer, reader, read)
    graph_of = needs[0] // many
    needs[[0, 2]] %= many
    return layer, cut(needs, np.bincount(graph_of, minlength=graphs)), [one.copy() for one in layers]
