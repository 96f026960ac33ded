"""The static part of a loop, and running its chunks: what the forward and the backward pass have in common."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.execute.segments import gather
from jitbatch.execute.weight_uses import CutCell, cut_cell
from jitbatch.ir.tables import Kind


@dataclass(frozen=True)
class Block:
    """All nodes of a type.

    Attributes:
        kind: what they compute.
        capacity: room for how many.
        starts: where the block of each output begins in its arena.
        flows: through which row operands a derivative can pass.
        widths: of a loop, the widths that chunks can have.
        terms: of sums, room for how many terms.
        longest: of sums in a loop with static trip counts, room for how many terms a sum.
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
        margin: how many rows lie before and behind the nodes in each block.
        rounds: room for how many rounds.
        reads, writes: for each type, the arena of each row operand, and of each output.
        edges: for each type, for each row operand where its edge rows begin, or -1 if it has no derivative.
        edge_rows: for each arena, how many edge rows there are without the sums of pairs; 0 for none.
        pair_rows: for each arena, room for how many sums of pairs.
        pair_trips: for each arena, how many chunks of sums of pairs there are at once, where trip counts are static;
            None where they are dynamic.
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

    @property
    def is_static(self) -> bool:
        """Whether the loop has static trip counts: every type runs in every round of the room for rounds, in one chunk
        that has the width of the widest round. What a chunk computes too much is overwritten or never read."""
        return self.pair_trips is not None

    def round_count(self, tables: dict[str, Any]) -> Any:
        return self.rounds if self.is_static else tables["rounds"]

    def room(self, block: Block) -> int:
        """How many rows the block of an output has, margins included."""
        return 2 * self.margin + block.capacity

    def operands(self, number: int, arenas: Any, tables: dict[str, Any], start: Any, width: int) -> list[Any]:
        """The rows that a chunk of a type reads."""
        index = part(tables["operands"][number], start, width)
        read = zip(self.reads[number], self.blocks[number].flows, strict=True)
        return [without_flow(gather(arenas[arena], index[:, slot]), flows) for slot, (arena, flows) in enumerate(read)]

    def over_chunks(self, number: int, ends: Any, r: Any, chunk: Callable[..., Any], carry: Any, sign: int = 1) -> Any:
        """Run `chunk(width, position, carry)` for the chunks of a type in a round, the widest first. The position of a
        chunk is where the one before it has ended; they ascend, or descend where the sign is negative.

        Args:
            ends: int [rounds, types, 1 + widths]; where the first chunk begins, and where those of each width end.
        """
        position = ends[r, number, 0]
        for place, width in reversed(list(enumerate(self.blocks[number].widths))):
            run = functools.partial(chunk, width)
            if self.is_static:
                carry = run(position, carry)
            else:
                end = (r, number, ends.shape[-1] - 1 - place)
                position, carry = while_before(ends, end, position, sign * width, run, carry)
        return carry


def while_before(
    ends: Any, end: tuple[Any, ...], position: Any, by: int, run: Callable[..., Any], carry: Any
) -> tuple[Any, Any]:
    """Run `run(position, carry)` for a position and those that follow it, as long as they have not come to `ends[end]`.
    This is looked up in the condition: made before the loop, every number is one more thing for XLA to start."""
    sign = 1 if by > 0 else -1
    return lax.while_loop(
        lambda state: sign * state[0] < sign * ends[end],
        lambda state: (state[0] + by, run(*state)),
        (position, carry),
    )


def put(arena: Any, rows: Any, start: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(arena, rows, start, 0)


def part(array: Any, start: Any, length: int) -> Any:
    return lax.dynamic_slice_in_dim(array, start, length)
