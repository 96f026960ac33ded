"""The static part of a loop, and its iteration over chunks. The forward and the backward pass share both."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.execute.fused.targets import TARGETS, Target
from jitbatch.execute.segments import gather_each
from jitbatch.execute.weight_uses import CutCell, cut_cell
from jitbatch.ir.tables import Kind


@dataclass(frozen=True)
class Block:
    """All nodes of a type.

    Attributes:
        kind: the kind of the nodes.
        capacity: the number of nodes that the block has room for.
        starts: for each output, the first row of its block in its arena.
        flows: for each row operand, whether a derivative can pass through it (activity analysis).
        widths: in a loop, the widths of chunks.
        terms: for a reduction, the number of terms that there is room for.
        longest: for a reduction in a loop with static trip counts, the number of terms per reduction.
    """

    kind: Kind
    capacity: int
    starts: tuple[int, ...]
    flows: tuple[bool, ...]
    widths: tuple[int, ...] = ()
    terms: int = 0
    longest: int = 0

    @property
    def cut(self) -> CutCell:
        """The cell, cut for the loop."""
        return cut_cell(self.kind.cell, self.kind.vmapped)


@dataclass(frozen=True)
class LoopShape:
    """The static part of a loop.

    Attributes:
        blocks: its types.
        margin: the number of rows before and behind the nodes in each block.
        rounds: the number of rounds that there is room for.
        reads, writes: for each type, the arena of each row operand and of each output.
        edges: for each type and row operand, its first cotangent row, or -1 if it has no derivative.
        edge_rows: for each arena, the number of cotangent rows without the pair sums.
        pair_rows: for each arena, the number of pair sums that there is room for.
        pair_trips: for static trip counts, the number of chunks of pair sums at a time, for each arena; None for
            dynamic trip counts.
        platform: the platform that the loop is made for.
    """

    blocks: tuple[Block, ...]
    margin: int
    rounds: int
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]
    edge_rows: tuple[int, ...]
    pair_rows: tuple[int, ...]
    pair_trips: tuple[int, ...] | None = None
    platform: str = "cpu"

    @property
    def target(self) -> Target:
        return TARGETS[self.platform]

    @property
    def is_static(self) -> bool:
        """Whether the loop has static trip counts.

        Then the loop runs all rounds that it has room for. In each round, each type runs one chunk with the width of
        the widest round. Surplus rows are overwritten or never read.
        """
        return self.pair_trips is not None

    def round_count(self, tables: dict[str, Any]) -> Any:
        return self.rounds if self.is_static else tables["rounds"]

    def room(self, block: Block) -> int:
        """Returns the number of rows in the block of an output, margins included."""
        return 2 * self.margin + block.capacity

    def operands(self, block_id: int, arenas: Any, tables: dict[str, Any], start: Any, width: int) -> list[Any]:
        """Gathers the operands of a chunk, with one gather for each arena."""
        index = part(tables["operands"][block_id], start, width)
        reads, flows = self.reads[block_id], self.blocks[block_id].flows
        slots = [[slot for slot, read in enumerate(reads) if read == arena] for arena in range(len(arenas))]
        rows: dict[int, Any] = {}
        for arena, arena_slots in zip(arenas, slots, strict=True):
            rows |= zip(arena_slots, gather_each(arena, [index[:, slot] for slot in arena_slots]), strict=True)
        return [without_flow(rows[slot], flows[slot]) for slot in range(len(reads))]

    def over_chunks(
        self, block_id: int, ends: "RoundTable", chunk: Callable[..., Any], carry: Any, sign: int = 1
    ) -> Any:  # fmt: skip
        """Runs the chunks of a type in a round, the widest first, and returns the final carry.

        Args:
            block_id: the index of the type among the blocks of the loop.
            ends: int [rounds, types, 1 + widths], of the round; the position of the first chunk, and the end of the
                chunks of each width.
            chunk: called as `chunk(width, position, carry)`; it returns the new carry. The position of a chunk is the
                end of the chunk before it.
            carry: the initial carry.
            sign: 1 for ascending positions, -1 for descending ones.
        """
        position = ends.at(block_id, 0)
        for width_id, width in reversed(list(enumerate(self.blocks[block_id].widths))):
            run = functools.partial(chunk, width)
            if self.is_static:
                carry = run(position, carry)
            else:
                end = ends.later(block_id, ends.table.shape[-1] - 1 - width_id)
                with jax.named_scope(f"chunks_{block_id}_{width}"):
                    position, carry = while_before(end, position, sign * width, run, carry)
        return carry


class RoundTable:
    """A table with a row for each round, in one round.

    Args:
        table: the table.
        r: the round.
        hoists: whether `later` reads at once.
    """

    def __init__(self, table: Any, r: Any, hoists: bool):
        self.table, self._r, self._hoists = table, r, hoists

    def at(self, *index: int) -> Any:
        return self.table[(self._r, *index)]

    def later(self, *index: int) -> Callable[[], Any]:
        """Returns a function that returns a value. The condition of a loop calls it."""
        if not self._hoists:
            return lambda: self.at(*index)
        value = self.at(*index)
        return lambda: value


def while_before(
    end: Callable[[], Any], position: Any, by: int, run: Callable[..., Any], carry: Any
) -> tuple[Any, Any]:  # fmt: skip
    """Runs `carry = run(position, carry)`, advancing `position` by `by`, until it reaches `end()`.

    Returns:
        The final position and carry.
    """
    sign = 1 if by > 0 else -1
    return lax.while_loop(
        lambda state: sign * state[0] < sign * end(),
        lambda state: (state[0] + by, run(*state)),
        (position, carry),
    )


def put(arena: Any, rows: Any, start: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(arena, rows, start, 0)


def part(array: Any, start: Any, length: int) -> Any:
    return lax.dynamic_slice_in_dim(array, start, length)
