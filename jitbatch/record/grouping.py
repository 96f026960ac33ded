"""Grouping of bare operations into cells.

Recording order is topological; bare operations are moved to where they are needed. A *run* is then a stretch of
consecutive bare operations; a *group* is a connected part of
a run, so groups cannot depend on each other in a circle; what makes one term of a sum is a group apart. A run ends

- at a call of a subgraph, and where a decorated function begins or ends (its `scope`),
- where the innermost activation of a recursive function changes: a node of a tree is one group, with its helpers,
- where a place in the code comes again on a path of dependencies: the next turn of a loop is the next group.
"""

from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from jitbatch.util import passes
from jitbatch.util.sites import Site, is_comprehension


def group_operations(
    sites: Sequence[Site | None], scopes: Sequence[int], reads: Sequence[Sequence[int]], turns: Sequence[Any]
) -> list[int]:
    """The group of each operation; groups are numbered in topological order.

    Args:
        sites: where each operation was recorded; None for a call of a subgraph, which is a group of its own.
        scopes: the decorated call each operation belongs to.
        reads: the earlier operations that each operation reads.
        turns: the turn of a loop over the terms of a sum that each operation belongs to, or None.
    """
    if not passes.runs("group"):
        return list(range(len(sites)))
    order = _lazy_order([site is None for site in sites], reads)
    place = {op: position for position, op in enumerate(order)}
    sites = [sites[op] for op in order]
    scopes = [scopes[op] for op in order]
    turns = [turns[op] for op in order]
    reads = [[place[other] for other in reads[op]] for op in order]

    runs = _runs(sites, scopes, reads, _mutually_recursive(sites))
    parent = list(range(len(sites)))

    def find(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    stages = _stages(runs, reads, turns)
    for op, earlier in enumerate(reads):
        for other in earlier:
            if runs[op] == runs[other] and stages[op] == stages[other]:
                a, b = find(op), find(other)
                parent[max(a, b)] = min(a, b)
    firsts = [find(op) for op in range(len(sites))]
    in_order = sorted(set(firsts), key=lambda first: (runs[first], stages[first], first))
    numbers = {first: number for number, first in enumerate(in_order)}
    return [numbers[firsts[place[op]]] for op in range(len(sites))]


def _lazy_order(is_call: Sequence[bool], reads: Sequence[Sequence[int]]) -> list[int]:
    """An order in which bare operations come just before the call that needs them, directly or not, and last those
    that no call needs: what is computed before a call and used only after it is one group with what uses it."""
    order: list[int] = []
    done = [False] * len(reads)
    for call in (op for op, one in enumerate(is_call) if one):
        needed = []
        pending = [call]
        while pending:
            op = pending.pop()
            if not done[op]:
                done[op] = True
                needed.append(op)
                pending += reads[op]
        order += sorted(needed)
    return order + [op for op, emitted in enumerate(done) if not emitted]


def _stages(runs: Sequence[int], reads: Sequence[Sequence[int]], turns: Sequence[Any]) -> list[int]:
    """How often the turn changes within a run on the way to each operation: groups of different turns in a run depend
    on each other only upwards. What belongs to a turn comes after what all turns have in common."""
    stages: list[int] = []
    for op, earlier in enumerate(reads):
        before = (stages[other] + (turns[op] != turns[other]) for other in earlier if runs[other] == runs[op])
        stages.append(max(0 if turns[op] is None else 1, *before, 0))
    return stages


def _mutually_recursive(sites: Sequence[Site | None]) -> set[CodeType]:
    """Functions that are active twice at once, though they do not mention themselves."""
    found: set[CodeType] = set()
    for site in sites:
        if site is not None and len(site.chain) > 1:
            codes = [frame.f_code for frame, _ in site.chain if not is_comprehension(frame.f_code)]
            if len(set(codes)) < len(codes):
                found.update(code for code in codes if codes.count(code) > 1)
    return found


def _activation(site: Site, recursive: set[CodeType]) -> tuple[FrameType | None, tuple[Any, ...]]:
    """The frame that a site belongs to, and the place within that frame's work."""
    place: list[Any] = [site.ordinal]
    for frame, instruction in site.chain:
        place.append((frame.f_code, instruction))
        if frame.f_code in recursive:
            return frame, tuple(place)
    outermost = site.chain[-1][0] if site.chain else None
    return outermost, tuple(place)


def _runs(
    sites: Sequence[Site | None], scopes: Sequence[int], reads: Sequence[Sequence[int]], recursive: set[CodeType]
) -> list[int]:
    runs: list[int] = []
    passed: list[int] = []  # bit set of the places on the paths that lead to each operation within its run
    bits: dict[Any, int] = {}
    run, before = -1, None
    for op, site in enumerate(sites):
        if site is None:
            run, before = run + 1, None
            runs.append(run)
            passed.append(0)
            continue
        frame, place = _activation(site, recursive)
        bit = 1 << bits.setdefault(place, len(bits))
        here = (scopes[op], id(frame))
        path = 0
        if here == before:
            for other in reads[op]:
                if runs[other] == run:
                    path |= passed[other]
        if here != before or path & bit:
            run, path = run + 1, 0
        before = here
        runs.append(run)
        passed.append(path | bit)
    return runs
