"""The tables of a fused program: rows of node outputs, operand rows, chunks, cotangent rows and sums of pairs."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.core.layout import NONE, PAIR_WIDTH, ArenaLayout, BlockLayout, LoopLayout, PhaseLayout


class Layout:
    """The sizes of a program, and the offsets of its tables in a buffer of `size` elements."""

    def __init__(self, table: Any, phases: Sequence[PhaseLayout], arenas: Sequence[ArenaLayout], size: int):
        self.table, self.phases, self.arenas, self.size = table, phases, arenas, size


class Filled(NamedTuple):
    """The result of `fill`.

    Attributes:
        value_row: int32 [values]; the row of every value.
        output_rows: int32; the rows of the values in the results of all samples.
        steps, launches, padded_rows: see `Summary`.
    """

    value_row: np.ndarray
    output_rows: np.ndarray
    steps: int
    launches: int
    padded_rows: int


class DoesNotFit(Exception):
    """The batch exceeds a capacity of the program."""


def need(fits: bool) -> None:
    if not fits:
        raise DoesNotFit


def fill(schedule: Any, layout: Layout, tables: np.ndarray) -> Filled | None:
    """Write the tables of a program into a buffer. Returns None if the batch does not fit.

    Args:
        schedule: the nodes of the batch, with their rounds.
        layout: the sizes of the program.
        tables: int32 [size of the layout]; the buffer.
    """
    if tables.dtype != np.int32 or tables.shape != (layout.size,):
        raise ValueError("the tables are not an int32 array of the size of the layout")
    try:
        return _Filling(schedule, layout, tables).run()
    except DoesNotFit:
        return None


class _Filling:
    def __init__(self, schedule: Any, layout: Layout, tables: np.ndarray):
        self.schedule, self.layout, self.out = schedule, layout, tables
        self.ordered: list[list[int]] = schedule.ordered()
        self.rows: list[int] = schedule.batch.value_row.tolist()
        self.nodes, self.first_value = schedule.batch.nodes.tolist(), schedule.batch.first_value.tolist()
        self.steps = self.launches = self.padded_rows = 0

    def run(self) -> Filled:
        self.check_given_rows()
        for phase in self.layout.phases:
            for block in phase.blocks:
                self.place(block, phase.loop.margin if phase.loop else 0)
        self.place_merged()
        self.operand_rows = [[self.rows[value] for value in reads] for reads in self.schedule.reads]
        for phase in self.layout.phases:
            for block_id, block in enumerate(phase.blocks):
                self.out[phase.total_table + block_id] = len(self.ordered[block.type])
            if phase.loop is None:
                self.fill_single(phase.blocks[0])
            else:
                self.fill_loop(phase.blocks, phase.loop)
        rows = np.array(self.rows, np.int32)
        outputs = rows[self.schedule.batch.outputs]
        return Filled(rows, outputs, self.steps, self.launches, self.padded_rows)

    def write(self, offset: int, numbers: Sequence[int]) -> None:
        self.out[offset : offset + len(numbers)] = numbers

    def check_given_rows(self) -> None:
        """Check that inputs and shared values fit in front of the node outputs of their arena."""
        room = {arena.value_class: arena.shared + arena.inputs for arena in self.layout.arenas}
        for value_class, row in zip(self.schedule.batch.given_class.tolist(), self.rows, strict=True):
            need(value_class < 0 or 0 <= row < room.get(value_class, 0))

    # Rows of node outputs

    def place(self, block: BlockLayout, margin: int) -> None:
        nodes = self.ordered[block.type]
        need(len(nodes) <= block.capacity)
        if self.schedule.table.types[block.type].is_variadic:
            arities = [len(self.schedule.reads[node]) for node in nodes]
            need(sum(arities) <= block.terms)
            need(not block.longest or max(arities, default=0) <= block.longest)
        for position, node in enumerate(nodes):
            first = self.first_value[self.nodes[node]]
            for output, start in enumerate(block.starts):
                self.rows[first + output] = start + margin + position

    def place_merged(self) -> None:
        """Give each output of a merged node the row of its leader's output."""
        batch, types = self.schedule.batch, self.schedule.table.types
        for node, (leader, type_id) in enumerate(zip(batch.leader.tolist(), batch.type.tolist(), strict=True)):
            for output in range(types[type_id].outputs if leader != node else 0):
                self.rows[self.first_value[node] + output] = self.rows[self.first_value[leader] + output]

    # A phase that is not a loop

    def fill_single(self, block: BlockLayout) -> None:
        nodes = self.ordered[block.type]
        rows = [self.operand_rows[node] for node in nodes]
        self.steps += bool(nodes)
        self.launches += bool(nodes)
        self.padded_rows += block.capacity
        if self.schedule.table.types[block.type].is_variadic:
            terms = [(row, position) for position, node_rows in enumerate(rows) for row in node_rows]
            terms += [(0, block.capacity)] * (block.terms - len(terms))
            self.write(block.tables[0], [row for row, _ in terms])
            self.write(block.tables[1], [segment for _, segment in terms])
            return
        # Padding repeats the last node.
        rows += [rows[-1] if rows else [0] * len(block.reads)] * (block.capacity - len(rows))
        for slot in range(len(block.reads)):
            self.write(block.tables[0] + slot * block.capacity, [node_rows[slot] for node_rows in rows])

    # A loop

    def fill_loop(self, blocks: Sequence[BlockLayout], loop: LoopLayout) -> None:
        round_of = self.schedule.round
        counts = [Counter(round_of[node] for node in self.ordered[block.type]) for block in blocks]
        rounds = max((when + 1 for block_counts in counts for when in block_counts), default=0)
        need(rounds <= loop.rounds)
        need(max((count for block_counts in counts for count in block_counts.values()), default=0) <= loop.most)
        self.out[loop.rounds_table] = rounds
        for block_id, block in enumerate(blocks):
            self.fill_ends(block_id, len(blocks), block, loop, counts[block_id])
            self.fill_operands(block, loop.margin)
        for arena in range(len(self.layout.arenas)):
            if loop.edge_rows[arena]:
                self.fill_arena(arena, blocks, loop, rounds)

    def fill_ends(
        self, block_id: int, blocks: int, block: BlockLayout, loop: LoopLayout, counts: Counter[int]
    ) -> None:  # fmt: skip
        """For each round, write the start of a type's chunks, then the end of those of each width, widest first."""
        first = loop.margin
        for now in range(loop.rounds):
            count = counts[now]
            chunks = self.chunks(count, block, loop)
            self.steps += count > 0
            ends = [first]
            for width, many in zip(loop.widths[::-1], chunks[::-1], strict=True):
                ends.append(ends[-1] + many * width)
                self.launches += many
                self.padded_rows += many * width
            self.write(loop.ends_table + (now * blocks + block_id) * len(ends), ends)
            first += count

    def chunks(self, count: int, block: BlockLayout, loop: LoopLayout) -> list[int]:
        """The number of chunks of each width that run `count` nodes."""
        if loop.pair_trips:
            return [1] * len(loop.widths)
        widths, largest = len(block.widths), block.widths[-1]
        first = count % largest * widths
        chunks = list(block.chunks[first : first + widths])
        chunks[-1] += count // largest
        return chunks + [0] * (len(loop.widths) - widths)

    def fill_operands(self, block: BlockLayout, margin: int) -> None:
        rows = [self.operand_rows[node] for node in self.ordered[block.type]]
        room = block.capacity + 2 * margin
        behind = room - margin - len(rows)
        if self.schedule.table.types[block.type].is_variadic:
            counts = [len(node_rows) for node_rows in rows]
            firsts = list(itertools.accumulate(counts, initial=0))[:-1]
            terms = [row for node_rows in rows for row in node_rows]
            self.write(block.tables[0], terms + [0] * (block.terms - len(terms)))
            self.write(block.tables[1], [0] * margin + firsts + [0] * behind)
            self.write(block.tables[2], [0] * margin + counts + [0] * behind)
            return
        first, last = (rows[0], rows[-1]) if rows else ([0] * len(block.reads),) * 2
        self.write(
            block.tables[0], [row for node_rows in [first] * margin + rows + [last] * behind for row in node_rows]
        )

    # Cotangent rows

    def fill_arena(self, arena: int, blocks: Sequence[BlockLayout], loop: LoopLayout, rounds: int) -> None:
        offsets, none = loop.arenas[arena], self.layout.arenas[arena].capacity
        due = self.due(arena, blocks, loop, rounds)
        row_of_edge = [none] * (loop.edge_rows[arena] + loop.pair_rows[arena])
        edges: dict[int, list[int]] = defaultdict(list)  # the cotangent rows of each row that the loop writes
        for block, slot in _reading(arena, blocks, self.schedule.table, variadic=False):
            for position, node in enumerate(self.ordered[block.type]):
                row, edge = self.operand_rows[node][slot], block.edges[slot] + loop.margin + position
                if row in due:
                    edges[row].append(edge)
                else:
                    row_of_edge[edge] = row
        self.write(offsets.row_of_edge, row_of_edge)
        edge_of_term: list[int] = []
        row_of_term: list[int] = []
        for block, _ in _reading(arena, blocks, self.schedule.table, variadic=True):
            before = len(edge_of_term)
            for position, node in enumerate(self.ordered[block.type]):
                for row in self.operand_rows[node]:
                    edge = block.edges[0] + loop.margin + position
                    if row in due:
                        edges[row].append(edge)
                    edge_of_term.append(edge)
                    row_of_term.append(none if row in due else row)
            padding = block.terms - (len(edge_of_term) - before)
            edge_of_term += [0] * padding
            row_of_term += [none] * padding
        if offsets.edge_of_term != NONE:
            self.write(offsets.edge_of_term, edge_of_term)
            self.write(offsets.row_of_term, row_of_term)
        self.fill_pairs(arena, len(blocks), loop, rounds, due, edges)

    def due(self, arena: int, blocks: Sequence[BlockLayout], loop: LoopLayout, rounds: int) -> dict[int, int]:
        """For each row of an arena that a loop writes, the moment when its cotangent is due. Moments count in the
        transposed order of rounds and types."""
        due: dict[int, int] = {}
        for block_id, block in enumerate(blocks):
            for start, written in zip(block.starts, block.writes, strict=True):
                for position, node in enumerate(self.ordered[block.type] if written == arena else ()):
                    moment = (rounds - 1 - self.schedule.round[node]) * len(blocks) + len(blocks) - 1 - block_id
                    due[start + loop.margin + position] = moment
        return due

    def fill_pairs(
        self, arena: int, types: int, loop: LoopLayout, rounds: int, due: dict[int, int], edges: dict[int, list[int]]
    ) -> None:
        """Sum the cotangent rows of each row two by two.

        A value with k readers has k cotangent rows. The sums of pairs and the cotangent rows form a binary heap: items
        0 to k - 2 are pairs, the other items are cotangent rows. Pair p adds items 2p + 1 and 2p + 2; pair 0 is the
        whole sum. So every sum is a gather and a contiguous write, and the cost is linear in the number of readers.
        """
        offsets, first_pair, room = loop.arenas[arena], loop.edge_rows[arena], loop.pair_rows[arena]
        deepest = max((len(row_edges) - 1 for row_edges in edges.values()), default=0).bit_length()
        pairs = [  # (moment, depth, row, pair); a pair reads only pairs of lower depth
            (due[row], deepest - (pair + 1).bit_length(), row, pair)
            for row in sorted(edges)
            for pair in range(len(edges[row]) - 1)
        ]
        pairs.sort(key=lambda pair: pair[:2])
        need(not pairs or len(pairs) + PAIR_WIDTH <= room)
        sum_row = {(row, pair): first_pair + pair_id for pair_id, (_, _, row, pair) in enumerate(pairs)}

        def item(row: int, item_id: int) -> int:
            count = len(edges[row]) - 1
            return sum_row[row, item_id] if item_id < count else edges[row][item_id - count]

        edge_of_row = [0] * self.layout.arenas[arena].capacity
        for row in edges:
            edge_of_row[row] = item(row, 0)
        self.write(offsets.edge_of_row, edge_of_row)
        if not room:
            return
        padding = [0] * (room - len(pairs))
        self.write(offsets.pair_left, [item(row, 2 * pair + 1) for _, _, row, pair in pairs] + padding)
        self.write(offsets.pair_right, [item(row, 2 * pair + 2) for _, _, row, pair in pairs] + padding)
        starts: list[int] = []
        chunks_before = [0] * (rounds * types + 1)  # for each moment
        for pair_id, (when, depth, _, _) in enumerate(pairs):
            if not starts or pairs[pair_id - 1][:2] != (when, depth) or pair_id - starts[-1] == PAIR_WIDTH:
                starts.append(pair_id)
                chunks_before[when + 1] += 1
        for moment in range(rounds * types):
            chunks_before[moment + 1] += chunks_before[moment]
        self.write(offsets.pair_start, starts + [0] * (room - len(starts)))
        spans = list(itertools.pairwise(chunks_before))[::-1]
        spans += [(0, 0)] * (loop.rounds * types - len(spans))
        self.write(offsets.pair_span, [bound for span in spans for bound in span])
        need(not loop.pair_trips or max(end - begin for begin, end in spans) <= loop.pair_trips[arena])


def _reading(arena: int, blocks: Sequence[BlockLayout], table: Any, variadic: bool) -> list[tuple[BlockLayout, int]]:
    """The operands that read an arena and have cotangent rows: of variadic types only, or of all other types."""
    return [
        (block, slot)
        for block in blocks
        if table.types[block.type].is_variadic == variadic
        for slot, read in enumerate(block.reads)
        if read == arena and block.edges[slot] != NONE
    ]
