"""`Sizes`: the numbers of nodes, terms, rows and rounds that a fused program has room for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitbatch.batch.types import Origin, Profile
from jitbatch.ir.graph import Graph


@dataclass(frozen=True)
class LoopSizes:
    """The sizes of a loop.

    Attributes:
        rounds: the number of rounds.
        width: the largest width of a chunk.
        pairs: for each value class, the number of pair sums.
        pair_trips: for each value class, the number of chunks of pair sums at a time; empty for dynamic trip counts.
        longest: the number of terms of a reduction; 0 for dynamic trip counts.
    """

    rounds: int = 0
    width: int = 0
    pairs: Mapping[int, int] = field(default_factory=dict)
    pair_trips: Mapping[int, int] = field(default_factory=dict)
    longest: int = 0

    def united(self, *others: "LoopSizes") -> "LoopSizes":
        """Returns sizes with room for each of several loops."""
        sizes = (self, *others)
        return LoopSizes(
            rounds=max(size.rounds for size in sizes),
            width=max(size.width for size in sizes),
            pairs=_largest([size.pairs for size in sizes]),
            pair_trips=_largest([size.pair_trips for size in sizes]),
            longest=max(size.longest for size in sizes),
        )


@dataclass(frozen=True)
class Sizes:
    """The sizes of a program. A plan made `like` another has at least the other's sizes.

    Attributes:
        profile: the node kinds, and the edges between them.
        exemplars: graphs with these kinds and edges.
        nodes: the number of nodes of each type, in the order of execution.
        terms: the number of terms of each reduction type.
        inputs: the number of input rows of each value class.
        shared: the ids of the shared values that are rows.
        loops: the sizes of each loop, by its types.
        items: the number of items of a ragged result.
        item: the tree of an item and the classes of its leaves, or None if unknown.
        outputs: for `out="rows"`, the number of output rows of each value class.
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
    outputs: Mapping[int, int] = field(default_factory=dict)

    def of_loop(self, origins: Sequence[Origin]) -> LoopSizes:
        """Returns the united sizes of the known loops that share a type with `origins`."""
        related = [size for loop, size in self.loops.items() if any(_same(a, b) for a in loop for b in origins)]
        return LoopSizes().united(*related)

    def changes(self, before: "Sizes", names: Mapping[Origin, str], classes: Mapping[int, str]) -> Iterator[str]:
        """Yields descriptions of the differences from earlier sizes.

        Args:
            before: the earlier sizes.
            names, classes: the names of types and of value classes.
        """
        yield from _differences("calls of", before.nodes, self.nodes, names)
        yield from _differences("terms of", before.terms, self.terms, names)
        yield from _differences("input rows of", before.inputs, self.inputs, classes)
        for loop, room in self.loops.items():
            known = next((size for other, size in before.loops.items() if other & loop), None)
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
    return {key: max(part.get(key, 0) for part in sizes) for part in sizes for key in part}


def _same(origin: Origin, other: Origin) -> bool:
    """Whether two types are of one cell. Their bindings may differ: with more kinds, a shared operand becomes a row."""
    return (origin.body, origin.part) == (other.body, other.part)


def size_of(sizes: Mapping[Origin, int], origin: Origin) -> int:
    found = sizes.get(origin)
    return max((n for o, n in sizes.items() if _same(o, origin)), default=0) if found is None else found
