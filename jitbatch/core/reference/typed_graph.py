"""A graph expressed in the types of a batch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Node(NamedTuple):
    """A node: its type, its level, its rank (see `Ranks`), and the values that it reads."""

    type: int
    level: int
    rank: int
    operands: list[int]


class Need(NamedTuple):
    """Nodes of type `type` and rank `rank` read nodes of type `read`, the highest of which has the rank `highest`."""

    type: int
    rank: int
    read: int
    highest: int


@dataclass(frozen=True, eq=False)
class TypedGraph:
    """A graph expressed in the types of a batch.

    The ids of values count the inputs first, then the shared values that are rows, then the node outputs in the order
    of the nodes. A variadic node of one term is dropped, and its readers read the term instead. It still counts for
    ranks and levels: so nodes at the same height of two trees have the same rank, with one child or with several.

    Attributes:
        table: the types.
        nodes: in topological order.
        values: the number of values.
        outputs: the values that are the leaves of the sample's result.
        inputs: for each input, its value class, and its row among the sample's rows of that class.
        class_rows: value classes, and the number of the sample's rows of each.
        shared: the ids of the shared values that are rows, ascending.
        needs: the constraints on the order of ranks, ascending.
        ranks: for each type in the graph, its number of ranks, with and without dropped nodes of one term.
    """

    table: Any
    nodes: list[Node]
    values: int
    outputs: list[int]
    inputs: list[tuple[int, int]]
    class_rows: list[tuple[int, int]]
    shared: list[int]
    needs: list[Need]
    ranks: dict[int, tuple[int, int]]

    @property
    def node_count(self) -> int:
        return len(self.nodes)

    @property
    def type_counts(self) -> dict[int, int]:
        """The number of nodes of each type in the graph."""
        return dict(sorted(Counter(node.type for node in self.nodes).items()))


class Made(NamedTuple):
    """A value during `retype`: its id, and the part that computes it, -1 for inputs and shared values."""

    value: int
    part: int


def retype(
    table: Any, kind: Sequence[int], operand_start: Sequence[int], operands: Sequence[int],
    shared_rows: Sequence[int], outputs: Sequence[int], inputs: list[tuple[int, int]],
    class_rows: list[tuple[int, int]],
) -> TypedGraph:  # fmt: skip
    """Express a graph in types: the parts in the recipe of its kind replace each node."""
    shared = sorted({*shared_rows, *_shared_operands(table, set(kind))})
    value_of_shared = {shared_id: Made(len(inputs) + position, -1) for position, shared_id in enumerate(shared)}
    made = [Made(value, -1) for value in range(len(inputs))] + [value_of_shared[shared_id] for shared_id in shared_rows]
    values = len(inputs) + len(shared)
    nodes: list[Node] = []
    ranks = Ranks(table)
    for node, node_kind in enumerate(kind):
        recipe = table.recipes[node_kind]
        reads = operands[operand_start[node] : operand_start[node + 1]]
        made_by_parts: list[list[Made]] = []
        for part in recipe.parts:
            part_type = table.types[part.type]
            if part_type.is_variadic:
                read = [made[value] for value in reads]
            else:
                read = [_source(operand, made, reads, value_of_shared, made_by_parts) for operand in part.operands]
            is_kept = not (part_type.is_variadic and len(read) == 1)
            part_id, level, rank = ranks.add(part.type, [source.part for source in read], is_kept)
            if is_kept:
                nodes.append(Node(part.type, level, rank, [source.value for source in read]))
                made_by_parts.append([Made(values + output, part_id) for output in range(part_type.outputs)])
                values += part_type.outputs
            else:
                made_by_parts.append([Made(read[0].value, part_id)])
        made += [made_by_parts[part][output] for part, output in recipe.outputs]
    return TypedGraph(
        table=table,
        nodes=nodes,
        values=values,
        outputs=[made[value].value for value in outputs],
        inputs=inputs,
        class_rows=class_rows,
        shared=shared,
        needs=ranks.needs(),
        ranks=ranks.by_type(),
    )


def _shared_operands(table: Any, kinds: set[int]) -> set[int]:
    """The shared values that the recipes of some kinds read as rows."""
    parts = [part for kind in kinds for part in table.recipes[kind].parts]
    return {first for part in parts for source, first, _ in part.operands if source == 1}


def _source(
    operand: tuple[int, int, int], made: list[Made], reads: Sequence[int], value_of_shared: dict[int, Made],
    made_by_parts: list[list[Made]],
) -> Made:  # fmt: skip
    """The value of an operand of a part, by its source (see `type_table`)."""
    source, first, output = operand
    if source == 0:
        return made[reads[first]]
    return value_of_shared[first] if source == 1 else made_by_parts[first][output]


class Ranks:
    """The ranks of the parts of a graph.

    The rank of a part is the largest number of other parts of its own type on a path to it, inside its loop (see
    `ir/ranks`). A part outside of all loops has rank 0.
    """

    def __init__(self, table: Any):
        self.table = table
        self.type: list[int] = []
        self.level: list[int] = []
        # For each part and each type of its loop, the largest number of parts of that type on a path to the part, the
        # part itself included: of all parts, and without dropped ones.
        self.below: list[Counter[int]] = []
        self.below_kept: list[Counter[int]] = []
        self.is_kept: list[bool] = []
        self.highest: dict[tuple[int, int, int], int] = {}

    def add(self, type_id: int, reads: list[int], is_kept: bool) -> tuple[int, int, int]:
        """Add a part that reads earlier parts. Returns its id, its level and its rank."""
        reads = [part for part in reads if part >= 0]
        loop = self.table.loop_of.get(type_id)
        inside = [part for part in reads if loop is not None and self.table.loop_of.get(self.type[part]) == loop]
        below, below_kept = Counter[int](), Counter[int]()
        for part in inside:
            below |= self.below[part]
            below_kept |= self.below_kept[part]
        below[type_id] += 1
        below_kept[type_id] += is_kept
        rank = below[type_id] - 1
        for part in inside:
            read = self.type[part]
            if read != type_id:
                key = type_id, rank, read
                self.highest[key] = max(self.highest.get(key, 0), self.below[part][read] - 1)
        self.type.append(type_id)
        self.level.append(max((self.level[part] + 1 for part in reads), default=0))
        self.below.append(below)
        self.below_kept.append(below_kept)
        self.is_kept.append(is_kept)
        return len(self.type) - 1, self.level[-1], rank

    def needs(self) -> list[Need]:
        """The constraints on the order of ranks between different types, ascending."""
        return [Need(*key, highest) for key, highest in sorted(self.highest.items())]

    def by_type(self) -> dict[int, tuple[int, int]]:
        """For each type, its number of ranks, with and without dropped parts."""
        found: dict[int, tuple[int, int]] = {}
        for part_id, type_id in enumerate(self.type):
            ranks, least = found.get(type_id, (0, 0))
            ranks = max(ranks, self.below[part_id][type_id])
            if self.is_kept[part_id]:
                least = max(least, self.below_kept[part_id][type_id])
            found[type_id] = ranks, least
        return dict(sorted(found.items()))
