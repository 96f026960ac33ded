"""The rounds of nodes that run in loops, and the counts that determine the sizes of a program."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitbatch.core.layout import PAIR_WIDTH
from jitbatch.core.reference.fill import Filled, Layout, fill

if TYPE_CHECKING:
    from jitbatch.core.reference.batch import Batch


class Measured(NamedTuple):
    """The counts of a batch that the capacities of a program must hold.

    Attributes:
        nodes, terms: for each type, the number of distinct nodes, and of all their operands.
        longest: for each type, the largest number of operands of a node.
        widest: for each type, the largest number of nodes in a round.
        rounds: the number of rounds of each loop.
        pairs: for each loop and value class, the number of sums of pairs of cotangent rows.
        pair_trips: for each loop and value class, the largest number of chunks of these sums at one moment.
    """

    nodes: list[int]
    terms: list[int]
    longest: list[int]
    widest: list[int]
    rounds: list[int]
    pairs: list[dict[int, int]]
    pair_trips: list[dict[int, int]]


Readers = dict[int, Counter[tuple[int, int]]]


class Schedule:
    """The rounds of the distinct nodes of a batch.

    Attributes:
        round: the round of each distinct node; 0 for a node outside of all loops.
        reads: the values that each distinct node reads.
        bound: a lower bound on the number of steps in any order.
    """

    def __init__(self, batch: "Batch"):
        self.batch = batch
        self.table: Any = batch.table
        self.type = batch.type[batch.nodes].tolist()
        self.rank = batch.rank[batch.nodes].tolist()
        self.round = [0] * len(self.type)
        start, operands = batch.operand_start.tolist(), batch.operands.tolist()
        self.reads = [operands[start[node] : start[node + 1]] for node in batch.nodes.tolist()]
        self.ranks = [max((graph.ranks.get(t, (0, 0))[0] for graph in batch.graphs), default=0) for t in self._types()]
        self.least = [max((graph.ranks.get(t, (0, 0))[1] for graph in batch.graphs), default=0) for t in self._types()]
        self.bound = sum(self.least)

    def _types(self) -> range:
        return range(len(self.table.types))

    def members(self, loop: int) -> np.ndarray:
        """int32; the nodes of a loop, as indices into the distinct nodes."""
        loop_types = set(self.table.loops[loop])
        return np.array([node for node, type_id in enumerate(self.type) if type_id in loop_types], np.int32)

    def least_steps(self, loop: int) -> int:
        """A lower bound on the number of steps of a loop."""
        return sum(self.least[t] for t in self.table.loops[loop])

    def steps(self, loop: int) -> int:
        """The number of steps of a loop: one for each round and each type with nodes in that round."""
        return len({(self.type[node], self.round[node]) for node in self.members(loop).tolist()})

    def by_ranks(self, loop: int) -> bool:
        """Make each rank of each type a step, if an order exists in which every rank reads only earlier ranks.

        Types take turns in the order of the loop. A new round begins where the next type is not later in that order.

        Returns:
            Whether such an order exists. Otherwise the rounds do not change.
        """
        members = self.table.loops[loop]
        before: dict[tuple[int, int], dict[int, int]] = {}
        for graph in self.batch.graphs:
            for need in graph.needs:
                if need.type in members:
                    needed = before.setdefault((need.type, need.rank), {})
                    needed[need.read] = max(needed.get(need.read, 0), need.highest + 1)
        done = dict.fromkeys(members, 0)
        round_of: dict[tuple[int, int], int] = {}
        now, last = -1, len(members)
        left = sum(self.ranks[t] for t in members)
        while left:
            left_before = left
            for position, t in enumerate(members):
                needs = before.get((t, done[t]), {})
                if done[t] < self.ranks[t] and all(done[read] >= count for read, count in needs.items()):
                    now += position <= last
                    last = position
                    round_of[t, done[t]] = now
                    done[t] += 1
                    left -= 1
            if left == left_before:
                return False
        for node in self.members(loop).tolist():
            self.round[node] = round_of[self.type[node], self.rank[node]]
        return True

    def put(self, loop: int, rounds: np.ndarray) -> None:
        """Set the round of each of the `members` of a loop."""
        for node, when in zip(self.members(loop).tolist(), rounds.tolist(), strict=True):
            self.round[node] = when

    def ordered(self) -> list[list[int]]:
        """The nodes of each type, as indices into the distinct nodes, in the order of their rounds."""
        found: list[list[int]] = [[] for _ in self._types()]
        for node in sorted(range(len(self.type)), key=self.round.__getitem__):
            found[self.type[node]].append(node)
        return found

    def measure(self, carries: Sequence[Sequence[int]], counts_trips: bool) -> Measured:
        """Count what the capacities of a program must hold.

        Args:
            carries: for each type and row operand, its value class, or -1 if it has no cotangent rows.
            counts_trips: whether to count `pair_trips`.
        """
        ordered = self.ordered()
        arity = [[len(self.reads[node]) for node in nodes] for nodes in ordered]
        per_round = [Counter(self.round[node] for node in nodes) for nodes in ordered]
        loops = self.table.loops
        readers = [self._readers(loop, carries, ordered) for loop in range(len(loops))]
        return Measured(
            nodes=[len(nodes) for nodes in ordered],
            terms=[sum(counts) for counts in arity],
            longest=[max(counts, default=0) for counts in arity],
            widest=[max(counts.values(), default=0) for counts in per_round],
            rounds=[max((self.round[node] + 1 for t in loop for node in ordered[t]), default=0) for loop in loops],
            pairs=[{c: sum(n.values()) - len(n) for c, n in of_loop.items()} for of_loop in readers],
            pair_trips=[
                {c: self._pair_trips(n) for c, n in of_loop.items()} if counts_trips else {} for of_loop in readers
            ],
        )

    def _readers(self, loop: int, carries: Sequence[Sequence[int]], ordered: list[list[int]]) -> Readers:
        """The number of cotangent rows of each value that a loop both computes and reads: for each value class, by the
        value's leader and output."""
        found: Readers = {}
        members = self.table.loops[loop]
        batch = self.batch
        producer, leader, first, types = (
            array.tolist() for array in (batch.producer, batch.leader, batch.first_value, batch.type)
        )
        for t in members:
            for node in ordered[t]:
                for operand_id, value in enumerate(self.reads[node]):
                    value_class = carries[t][0 if self.table.types[t].is_variadic else operand_id]
                    maker = producer[value]
                    if value_class >= 0 and maker >= 0 and types[maker] in members:
                        found.setdefault(value_class, Counter())[leader[maker], value - first[maker]] += 1
        return found

    def _pair_trips(self, readers: Counter[tuple[int, int]]) -> int:
        """The largest number of chunks of sums of pairs at one moment (see `fill_pairs`)."""
        position_of = {node: position for position, node in enumerate(self.batch.nodes.tolist())}
        deepest = max((count - 1 for count in readers.values()), default=0).bit_length()
        pairs: Counter[tuple[int, int, int]] = Counter()
        for (leader, _), count in readers.items():
            node = position_of[leader]
            for pair in range(count - 1):
                pairs[self.round[node], self.type[node], deepest - (pair + 1).bit_length()] += 1
        chunks: Counter[tuple[int, int]] = Counter()
        for (now, type_id, _), count in pairs.items():
            chunks[now, type_id] += -(-count // PAIR_WIDTH)
        return max(chunks.values(), default=0)

    def fill(self, layout: Layout, tables: np.ndarray) -> Filled | None:
        """Write the tables of a program. Returns None if the batch does not fit (see `fill`)."""
        return fill(self, layout, tables)
