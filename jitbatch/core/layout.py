"""The sizes of a fused program, and where its tables lie in one buffer, as integers that the core reads."""

from typing import NamedTuple

NONE = -1
"""The offset of a table that a program does not have."""

PAIR_WIDTH = 32
"""How many pairs of cotangent rows are summed at once."""


class BlockLayout(NamedTuple):
    """The nodes of a type.

    Attributes:
        type: the type.
        capacity: room for how many nodes.
        terms: of variadic types, room for how many terms.
        longest: of variadic types in a loop with static trip counts, how many rows a node can read; 0 for any number.
        starts: for each output, where its block begins in its arena.
        reads, writes: for each row operand, and for each output, its arena.
        edges: in a loop, for each row operand where its cotangent rows begin, `NONE` for those without a derivative.
        widths: in a loop, the widths that chunks can have, ascending.
        chunks: for every number of nodes below the largest width, how many chunks of each width to run; flat.
        tables: offsets; of operands, or for variadic types of terms and segments, in a loop of terms, first and count.
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
    """The offsets of the tables that a loop has for one arena; `NONE` for those that it does not have."""

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
        margin: how many rows lie before and behind the nodes in each block.
        rounds: room for how many rounds.
        most: how many nodes of a type a round can have.
        pair_trips: for each arena how many chunks of sums of pairs can be due at once, where trip counts are static:
            then every type runs in every round, in one chunk. Empty where they are dynamic.
        widths: the widths that chunks can have, ascending.
        edge_rows, pair_rows: for each arena how many cotangent rows there are, and room for how many sums of pairs.
        rounds_table, ends_table: offsets.
        arenas: the other tables, for each arena.
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
    """A phase: its types, the offset of how many nodes each has, and what it has as a loop."""

    blocks: tuple[BlockLayout, ...]
    total_table: int
    loop: LoopLayout | None


class ArenaLayout(NamedTuple):
    """An arena: its value class, how many shared values and input rows it begins with, and how many rows it has."""

    value_class: int
    shared: int
    inputs: int
    capacity: int
