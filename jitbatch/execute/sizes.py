"""Sizes: what a fused program has room for, so that other batches can be run by it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        items: of ragged results, how many items.
        item: the tree of an item and the classes of its leaves, where that is known.
    """

    profile: Profile = field(default_factory=Profile)
    exemplars: tuple[Graph, ...] = ()
    nodes: Mapping[Origin, int] = field(default_factory=dict)
    terms: Mapping[Origin, int] = field(default_factory=dict)
    inputs: Mapping[int, int] = field(default_factory=dict)
    shared: frozenset[int] = frozenset()
    loops: Mapping[frozenset[Origin], LoopSizes] = field(default_factory=dict)
    items: int = 0
    item: tuple[Any, tuple[int, ...]] | None = None

    def of_loop(self, origins: Sequence[Origin]) -> LoopSizes:
        """The sizes of the loops that have become the loop of these types."""
        own = [size for loop, size in self.loops.items() if any(_same(a, b) for a in loop for b in origins)]
        return LoopSizes().united(*own)

    def changes(self, before: "Sizes", names: Mapping[Origin, str], classes: Mapping[int, str]) -> Iterator[str]:
        """How these sizes differ from earlier ones, for people; types and value classes have names."""
        yield from _differences("calls of", before.nodes, self.nodes, names)
        yield from _differences("terms of", before.terms, self.terms, names)
        yield from _differences("input rows of", before.inputs, self.inputs, classes)
        for loop, room in self.loops.items():
            known = next((own for other, own in before.loops.items() if other & loop), None)
            cells = ", ".join(sorted(names[origin] for origin in loop))
            if known is None:
                yield f"a loop of {cells}, whose calls did not read each other before"
                continue
            for what, was, is_now in (("rounds", known.rounds, room.rounds), ("the width", known.width, room.width)):
                if was != is_now:
                    yield f"{what} of the loop of {cells} {grew(was, is_now)}"
            yield from _differences("sums of gradients of", known.pairs, room.pairs, classes)


def _differences(what: str, old: Mapping[Any, int], new: Mapping[Any, int], names: Mapping[Any, str]) -> Iterator[str]:
    for key, room in new.items():
        if key in old and old[key] != room:
            yield f"room for {what} {names[key]} {grew(old[key], room)}"


def grew(was: int, is_now: int) -> str:
    return f"{'grew' if is_now > was else 'shrank'} from {was} to {is_now}"


def _largest(sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    return {key: max(one.get(key, 0) for one in sizes) for one in sizes for key in one}


def _same(one: Origin, other: Origin) -> bool:
    """Whether a type may have become another: with more kinds known, an operand that was shared may be a row."""
    return (one.body, one.part) == (other.body, other.part)


def size_of(sizes: Mapping[Origin, int], origin: Origin) -> int:
    found = sizes.get(origin)
    return max((n for o, n in sizes.items() if _same(o, origin)), default=0) if found is None else found
