"""The sizes of a fused program, and the offsets of its tables in one buffer, as integers for the core."""

from typing import NamedTuple

NONE = -1
"""The offset of a missing table, or the first cotangent row of an operand without cotangent rows."""

PAIR_WIDTH = 32
"""The number of pairs of cotangent rows in one chunk of sums."""


class BlockLayout(NamedTuple):
    """The block of a type: the room for its nodes.

    Attributes:
        type: the type.
        capacity: the capacity for nodes.
        terms: for a variadic type, the capacity for terms (operands of all its nodes).
        longest: for a variadic type in a loop with static trip counts, the largest number of terms of a node; 0 without
            a limit.
        starts: for each output, the first row of its block in its arena.
        reads, writes: the arena of each row operand, and of each output.
        edges: in a loop, the first cotangent row of each row operand; `NONE` for an operand without a derivative.
        widths: in a loop, the possible widths of chunks, ascending.
        chunks: for every number of nodes below the largest width, the number of chunks of each width; flat.
        tables: offsets of the block's tables. A type with fixed operands has one table, of operand rows. A variadic
            type has the terms and their segments; in a loop, the terms, the first term of each node, and its count.
    """

    type: int
    capacity: int
    terms: int
    longest: int
    starts: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    edges: tuple[int, ...]
    widths: tuple[int, ...]
    chunks: tuple[int, ...]
    tables: tuple[int, ...]


class ArenaTables(NamedTuple):
    """The offsets of a loop's tables for one arena; `NONE` for a table that the loop does not have."""

    edge_of_row: int = NONE
    row_of_edge: int = NONE
    edge_of_term: int = NONE
    row_of_term: int = NONE
    pair_left: int = NONE
    pair_right: int = NONE
    pair_start: int = NONE
    pair_span: int = NONE


class LoopLayout(NamedTuple):
    """The sizes of a loop.

    Attributes:
        margin: the number of free rows before and after the nodes of each block.
        rounds: the capacity for rounds.
        most: the capacity for nodes of one type in one round.
        pair_trips: with static trip counts, for each arena the capacity for chunks of sums of pairs at one moment.
            Every type then runs in every round, in one chunk. Empty with dynamic trip counts.
        widths: the possible widths of chunks, ascending.
        edge_rows, pair_rows: for each arena the number of cotangent rows, and the capacity for sums of pairs.
        rounds_table, ends_table: offsets of the number of rounds, and of the ends of chunks.
        arenas: the offsets of the other tables, for each arena.
    """

    margin: int
    rounds: int
    most: int
    pair_trips: tuple[int, ...]
    widths: tuple[int, ...]
    edge_rows: tuple[int, ...]
    pair_rows: tuple[int, ...]
    rounds_table: int
    ends_table: int
    arenas: tuple[ArenaTables, ...]


class PhaseLayout(NamedTuple):
    """A phase: the blocks of its types, the offset of their node counts, and the sizes of its loop, if it is one."""

    blocks: tuple[BlockLayout, ...]
    total_table: int
    loop: LoopLayout | None


class ArenaLayout(NamedTuple):
    """An arena: its value class, the capacities for shared values and for input rows, which come first, and in all."""

    value_class: int
    shared: int
    inputs: int
    capacity: int
