"""Sizes: what a fused program has room for, so that other batches can be run by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jitbatch.batch.types import Origin, Profile
from jitbatch.ir.graph import Graph


@dataclass(frozen=True)
class LoopSizes:
    """What a loop has room for: rounds, the width of a chunk, and of each class sums of pairs; where trip counts are
    static, also chunks of these at once, and terms a sum."""

    rounds: int = 0
    width: int = 0
    pairs: Mapping[int, int] = field(default_factory=dict)
    pair_trips: Mapping[int, int] = field(default_factory=dict)
    longest: int = 0

    def united(self, *others: "LoopSizes") -> "LoopSizes":
        """Room for each of several loops."""
        own = (self, *others)
        return LoopSizes(
            rounds=max(size.rounds for size in own),
            width=max(size.width for size in own),
            pairs=_largest([size.pairs for size in own]),
            pair_trips=_largest([size.pair_trips for size in own]),
            longest=max(size.longest for size in own),
        )


@dataclass(frozen=True)
class Sizes:
    """What a program has room for. A plan made `like` another has at least the other's sizes.

    Attributes:
        profile: the kinds of node and the edges between them.
        exemplars: graphs that have these kinds and edges.
        nodes, terms: how many nodes of each type, in the order in which they run; of sums, how many terms.
        inputs: how many input rows of each class.
        shared: the shared values that are rows.
        loops: the sizes of each loop, by its types.
    """

    profile: Profile = field(default_factory=Profile)
    exemplars: tuple[Graph, ...] = ()
    nodes: Mapping[Origin, int] = field(default_factory=dict)
    terms: Mapping[Origin, int] = field(default_factory=dict)
    inputs: Mapping[int, int] = field(default_factory=dict)
    shared: frozenset[int] = frozenset()
    loops: Mapping[frozenset[Origin], LoopSizes] = field(default_factory=dict)

    def of_loop(self, origins: Sequence[Origin]) -> LoopSizes:
        """The sizes of the loops that have become the loop of these types."""
        own = [size for loop, size in self.loops.items() if any(_same(a, b) for a in loop for b in origins)]
        return LoopSizes().united(*own)


def _largest(sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    return {key: max(one.get(key, 0) for one in sizes) for one in sizes for key in one}


def _same(one: Origin, other: Origin) -> bool:
    """Whether a type may have become another: with more kinds known, an operand that was shared may be a row."""
    return (one.body, one.part) == (other.body, other.part)


def size_of(sizes: Mapping[Origin, int], origin: Origin) -> int:
    found = sizes.get(origin)
    return max((n for o, n in sizes.items() if _same(o, origin)), default=0) if found is None else found
